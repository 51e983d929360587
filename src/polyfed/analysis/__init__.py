"""Analysis of learned features, as pure functions over tensors.

`cka` has the similarity of features between models, `tsne` embeddings in two dimensions.
"""
