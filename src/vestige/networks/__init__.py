"""Reference networks, heads on frozen backbones, imprint layers and shipped backbones."""

from vestige.networks.backbones import BackboneForm, load_backbone
from vestige.networks.deep import alexnet, resnet9, resnet18, vgg11
from vestige.networks.gaussian_head import gaussian_head
from vestige.networks.headed_model import HeadedModel
from vestige.networks.imprint import BareImprint, Bins, ImprintedModel
from vestige.networks.small import convnet, lenet, lenet5, mlp, resnet

__all__ = [
    "BackboneForm",
    "BareImprint",
    "Bins",
    "HeadedModel",
    "ImprintedModel",
    "alexnet",
    "convnet",
    "gaussian_head",
    "lenet",
    "lenet5",
    "load_backbone",
    "mlp",
    "resnet",
    "resnet9",
    "resnet18",
    "vgg11",
]
