"""What kind of layer an operator is, by its name: as PyTorch names operators ("aten::conv2d") and the nodes of autograd
("ConvolutionBackward0"). Names that nobody knows here (custom functions, compiled regions) are a kind of their own.
"""

from __future__ import annotations

import functools
import re

OTHER, CUSTOM = "other", "custom"

# The first pattern that is found in the bare name, in lower case without "backward" and numbers, says the kind.
_PATTERNS = [(re.compile(pattern), kind) for pattern, kind in (
    (r"dropout", "dropout"),
    (r"attention", "attention"),
    (r"loss|cross_?entropy|ctc|^kl_div", "loss"),
    (r"softmax|logsumexp", "softmax"),
    (r"conv", "conv"),
    (r"^linear$|^addmm$|^addbmm$|^bilinear$", "fc"),
    (r"^(mm|bmm|matmul|baddbmm|einsum|dot|mv|outer|unsafeview)$", "matmul"),
    (r"norm", "norm"),
    (r"pool", "pool"),
    (r"relu|gelu|silu|sigmoid|tanh|elu$|mish|hardswish|softplus|threshold|glu$", "act"),
    (r"embedding", "embedding"),
    (r"lstm|gru|rnn", "recurrent"),
    (r"^(cat|concat|concatenate|stack|hstack|vstack|dstack)$", "join"),
    (r"^(to|_?to_?copy|clone|contiguous|copy|float|half|bfloat16|pin_memory)$", "copy"),
    (r"^(add|sub|rsub|mul|div|pow|neg|exp|log|sqrt|rsqrt|addcmul|addcdiv|where|lerp|maximum|minimum|clamp\w*|abs|sin|cos)$",
     "elementwise"),
    (r"^(sum|mean|var|std|max|min|amax|amin|prod|argmax|argmin|any|all|cumsum)(_\w+)?$", "reduce"),
    (r"upsample|interpolate|grid_sample|pad", "resample"),
    (r"accumulategrad", "accumulate"),
)]


@functools.cache
def kind_of(name: str) -> str:
    """The kind of the operator or node of that name: "conv", "norm", "act", "fc", …; "custom" for what is not PyTorch's."""
    bare = name.rsplit("::", 1)[-1].lower()
    bare = re.sub(r"backward\d*$", "", bare).strip("_")
    bare = re.sub(r"^(native|cudnn|miopen|mkldnn|_)*_", "", bare)
    if "::" not in name and not re.search(r"Backward\d+$", name):
        return CUSTOM
    return next((kind for pattern, kind in _PATTERNS if pattern.search(bare)), OTHER)
