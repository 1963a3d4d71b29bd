"""The errors that users import (`trimtab.errors`) are those that clients raise."""

import trimtab.errors as door
from trimtab.kafka import errors


def test_the_door_has_every_error_and_nothing_else() -> None:
    raised = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.KafkaError)
    }
    assert set(door.__all__) == raised | {"ErrorCode"}
    assert all(getattr(door, name) is getattr(errors, name) for name in door.__all__)
