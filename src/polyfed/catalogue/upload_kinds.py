"""Kinds of information that clients upload, by the names that methods declare in `sends.kinds`."""

from __future__ import annotations

from collections.abc import Mapping

UPLOAD_KINDS: Mapping[str, str] = {
    "weights": "weights of the client's own model: all, layers or a slice, with BatchNorm statistics",
    "head": "weights of the head of the client's own model",
    "shared-model": "weights of a small common model, which every client trains in addition to its own",
    "decoder": "weights of a small decoder, which generates images from features",
    "class-means": "mean feature per class",
    "class-statistics": "variances or covariances of features, per class or over all classes",
    "class-outputs": "mean output of the model per class",
    "embeddings": "one feature vector per training sample",
    "labels": "the label of every training sample",
    "outputs": "outputs of the model on synthetic images, or on training samples",
    "gradients": "gradients of a loss on the client's data",
    "counts": "numbers of samples: total or per class",
    "pixel-statistics": "mean and mean square of the pixels",
    "image-size": "height, width and channels of the images",
    "training-statistics": "numbers of steps and epochs, training accuracy, sizes of updates",
}
# A kind that is a part of another: whoever allows or forbids the whole does so for the part.
PARTS: Mapping[str, str] = {"head": "weights"}
