"""Reconstruction attack: how much of a client's images can be recovered from its uploads.

`target` loads the uploads to attack from a run folder, `attacker` trains the decoder, `image_similarity` has PSNR and
SSIM, and `reconstruction` runs the whole attack.
"""
