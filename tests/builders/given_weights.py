"""A reference with weights that no constructor makes, and programs constructed of them."""

import torch
from torch import nn

from pike_hpc.evaluate.runner import Hands, layers_made, slots_of, unwritten, watching
from pike_hpc.evaluate.runner.places import shaped

C = 8
IMAGE, ROW = (2, C, 4, 4), (3, C)


class Pre(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(C)
        self.conv = nn.Conv2d(C, C, 1, bias=False)

    def forward(self, x):
        return self.conv(torch.relu(self.bn(x)))


def folded(bn):
    gain = bn.weight.detach() / torch.sqrt(bn.running_var + bn.eps)
    return gain, bn.bias.detach() - bn.running_mean * gain


class Post(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(C, C, 1, bias=False)
        self.bn = nn.BatchNorm2d(C)
        for parameter in self.conv.parameters():
            nn.init.kaiming_normal_(parameter)

    def forward(self, x):
        return self.bn(self.conv(x))


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(C, C)
        self.scale = nn.Parameter(torch.rand(C))

    def forward(self, x):
        return self.fc(x) * self.scale


def drawn(reference):
    """A model with weights that no constructor makes, these, and what makes hands of weights."""
    made = []
    with watching(made.append):
        torch.manual_seed(1)
        model = reference().eval()
    layers = layers_made(model, made)
    with torch.no_grad():
        for tensor in model.state_dict(keep_vars=True).values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(torch.rand_like(tensor))
    state = model.state_dict(keep_vars=True)
    parameters = [i for i, t in enumerate(state.values()) if isinstance(t, nn.Parameter)]
    weights = [t.detach().clone() for t in state.values()]
    names = list(state)
    indexed = [(kind, [names.index(n) for n in own]) for kind, own in layers]

    def hands(weights):
        return Hands(slots_of(names, weights, parameters), indexed, weights)

    return model, weights, hands


def constructed(program, hands, weights, twins=1):
    """The program with its weights where they go, as a runner makes it with room for `twins`."""
    room = iter(range(twins))

    def made(weights):
        hand = hands(weights)
        with hand.giving():
            torch.manual_seed(1)
            return hand, program()

    def twin():
        if next(room, None) is None:
            return None
        with unwritten():
            return made([w + 1 for w in weights])[1].state_dict(keep_vars=True)

    hand, model = made(weights)
    own = model.state_dict(keep_vars=True)
    placement = hand.place(own, twin)
    if placement is not None:
        state = model.state_dict()
        state.update({n: shaped(weights[i], state[n]) for n, i in placement.slots.items()})
        model.load_state_dict(state)
    return model.eval(), placement


def answers_alike(reference, program, shape):
    """Whether the program has places for the weights and answers as the reference does."""
    truth, weights, hands = drawn(reference)
    model, placement = constructed(program, hands, weights)
    x = torch.randn(shape)
    with torch.inference_mode():
        return placement is not None and torch.allclose(model(x), truth(x), atol=1e-5)


def kept(reference, program):
    """Whether places were known by name, and whether they last."""
    _, weights, hands = drawn(reference)
    _, placement = constructed(program, hands, weights)
    return placement.by_name, placement.lasting
