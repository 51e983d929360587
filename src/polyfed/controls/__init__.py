"""Controls and variants of methods and filters, for ablations.

They are not listed as methods, because only experiments about one method need them. A config imports the module:
`imports: [polyfed.controls.fedfree]` and `method: fedfree-frozen-server`.
"""
