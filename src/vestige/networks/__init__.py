"""Reference networks, heads on frozen backbones, imprint layers and shipped backbones."""

from vestige.networks.backbones import BackboneForm, load_backbone
from vestige.networks.deep import alexnet, resnet9, resnet18, vgg11
from vestige.networks.gaussian_head import gaussian_head
from vestige.networks.headed_model import HeadedModel
from vestige.networks.imprint import BareImprint, Bins, ImprintedModel
from vestige.networks.small import convnet, lenet, lenet5, mlp, resnet
from vestige.networks.token_model import TokenModel, own_loss
from vestige.networks.transformer import transformer

__all__ = [
    "BackboneForm",
    "BareImprint",
    "Bins",
    "HeadedModel",
    "ImprintedModel",
    "TokenModel",
    "alexnet",
    "convnet",
    "gaussian_head",
    "lenet",
    "lenet5",
    "load_backbone",
    "mlp",
    "own_loss",
    "resnet",
    "resnet9",
    "resnet18",
    "transformer",
    "vgg11",
]
