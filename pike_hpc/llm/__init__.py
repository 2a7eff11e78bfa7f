"""The door to language models: one protocol, three implementations, prices.

`OpenAIModel` (`pike_hpc.llm.openai_model`) is not imported here: its client takes a second.
"""

from pike_hpc.llm.cassette import CassetteModel, RecordingModel
from pike_hpc.llm.errors import ModelRefused, ModelUnavailable, NotRecorded
from pike_hpc.llm.make import PROVIDERS, make_model
from pike_hpc.llm.prices import Price, load_prices, price_of
from pike_hpc.llm.request import Completion, LanguageModel, ModelRequest
from pike_hpc.llm.retry import RetryPolicy, Waits
from pike_hpc.llm.scripted import Script, ScriptedAnswer, ScriptedModel, load_script

__all__ = [
    "PROVIDERS",
    "CassetteModel",
    "Completion",
    "LanguageModel",
    "ModelRefused",
    "ModelRequest",
    "ModelUnavailable",
    "NotRecorded",
    "Price",
    "RecordingModel",
    "RetryPolicy",
    "Script",
    "ScriptedAnswer",
    "ScriptedModel",
    "Waits",
    "load_prices",
    "load_script",
    "make_model",
    "price_of",
]
