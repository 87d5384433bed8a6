from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("version", "software")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    software: str
    def __init__(self, version: _Optional[int] = ..., software: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("version", "software", "run_id", "environment", "settings", "spec", "num_environments")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    software: str
    run_id: str
    environment: str
    settings: str
    spec: Spec
    num_environments: int
    def __init__(self, version: _Optional[int] = ..., software: _Optional[str] = ..., run_id: _Optional[str] = ..., environment: _Optional[str] = ..., settings: _Optional[str] = ..., spec: _Optional[_Union[Spec, _Mapping]] = ..., num_environments: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("version", "software", "run_id", "spec", "num_environments")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    NUM_ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    software: str
    run_id: str
    spec: Spec
    num_environments: int
    def __init__(self, version: _Optional[int] = ..., software: _Optional[str] = ..., run_id: _Optional[str] = ..., spec: _Optional[_Union[Spec, _Mapping]] = ..., num_environments: _Optional[int] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("id", "slots", "seeds")
    ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    slots: _containers.RepeatedScalarFieldContainer[int]
    seeds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., slots: _Optional[_Iterable[int]] = ..., seeds: _Optional[_Iterable[int]] = ...) -> None: ...

class Observations(_message.Message):
    __slots__ = ("request", "environment", "step_type", "reward", "discount", "observation", "goodbye")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    STEP_TYPE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DISCOUNT_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    request: int
    environment: bytes
    step_type: bytes
    reward: bytes
    discount: bytes
    observation: _containers.RepeatedScalarFieldContainer[bytes]
    goodbye: bool
    def __init__(self, request: _Optional[int] = ..., environment: _Optional[bytes] = ..., step_type: _Optional[bytes] = ..., reward: _Optional[bytes] = ..., discount: _Optional[bytes] = ..., observation: _Optional[_Iterable[bytes]] = ..., goodbye: bool = ...) -> None: ...

class Actions(_message.Message):
    __slots__ = ("request", "action", "goodbye")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    request: int
    action: bytes
    goodbye: bool
    def __init__(self, request: _Optional[int] = ..., action: _Optional[bytes] = ..., goodbye: bool = ...) -> None: ...

class Spec(_message.Message):
    __slots__ = ("observation", "discrete", "multi_discrete", "bounded", "max_episode_steps", "action_repeat")
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_FIELD_NUMBER: _ClassVar[int]
    MULTI_DISCRETE_FIELD_NUMBER: _ClassVar[int]
    BOUNDED_FIELD_NUMBER: _ClassVar[int]
    MAX_EPISODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    ACTION_REPEAT_FIELD_NUMBER: _ClassVar[int]
    observation: _containers.RepeatedCompositeFieldContainer[Array]
    discrete: Discrete
    multi_discrete: MultiDiscrete
    bounded: Bounded
    max_episode_steps: int
    action_repeat: int
    def __init__(self, observation: _Optional[_Iterable[_Union[Array, _Mapping]]] = ..., discrete: _Optional[_Union[Discrete, _Mapping]] = ..., multi_discrete: _Optional[_Union[MultiDiscrete, _Mapping]] = ..., bounded: _Optional[_Union[Bounded, _Mapping]] = ..., max_episode_steps: _Optional[int] = ..., action_repeat: _Optional[int] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("path", "shape", "dtype", "minimum", "maximum")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    path: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    minimum: float
    maximum: float
    def __init__(self, path: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ...) -> None: ...

class Discrete(_message.Message):
    __slots__ = ("num_values",)
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    num_values: int
    def __init__(self, num_values: _Optional[int] = ...) -> None: ...

class MultiDiscrete(_message.Message):
    __slots__ = ("num_values",)
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    num_values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_values: _Optional[_Iterable[int]] = ...) -> None: ...

class Bounded(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ...) -> None: ...
