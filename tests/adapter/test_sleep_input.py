"""What dymem.sleep() and wake() say to arguments that mean nothing: one sentence, before anything is touched."""

import pytest

import dymem
from dymem.errors import InvalidArgument


@pytest.mark.parametrize("call, word", [
    (lambda: dymem.sleep(keep=None), "names such as"),
    (lambda: dymem.sleep(keep="disk"), "'host', 'drop'"),
    (lambda: dymem.sleep(keep=("no such tag",)), "nothing was allocated under"),
    (lambda: dymem.sleep(device=-1), "device is a number"),
    (lambda: dymem.sleep(device=True), "device is a number"),
    (lambda: dymem.sleep(device=99), "there is no device 99: devices are numbered from 0 to"),
    (lambda: dymem.sleep(tags=("no such tag",)), "nothing was allocated under"),
    (lambda: dymem.wake(tags=5), "names such as"),
    (lambda: dymem.sleep(keep=[10**5000]), "a tag is a name such as 'weights', not a number of"),
    (lambda: dymem.sleep(device=-10**5000), "device is a number"),
    (lambda: dymem.sleep(device=10**5000), "there is no device a number of"),
    (lambda: dymem.sleep(keep=[["x"]]), "a tag is a name"),
    (lambda: dymem.sleep(tags=[{}]), "a tag is a name"),
    (lambda: dymem.wake(tags=(None,)), "a tag is a name"),
])
def test_bad_arguments_get_one_sentence(call, word):
    with pytest.raises(InvalidArgument, match=word) as caught:
        call()
    assert "\n" not in str(caught.value)
