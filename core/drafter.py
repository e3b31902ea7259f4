"""For drafters: the class to implement, and what it is given."""

from augury.batch import Batch as Batch, PartInput as PartInput, SlotInput as SlotInput, Tree as Tree
from augury.compiled import address_of as address_of, array_at as array_at, compiled as compiled, invoker as invoker
from augury.devices import Placement as Placement
from augury.engine.sampler import Sampler as Sampler, random_stream as random_stream
from augury.files.gguf import ModelFile as ModelFile
from augury.hookspecs import hookimpl as hookimpl
from augury.interfaces.compiled import CompiledDraft as CompiledDraft
from augury.interfaces.drafter import (
    Ask as Ask,
    Drafter as Drafter,
    DrafterTraits as DrafterTraits,
    Pace as Pace,
    Session as Session,
)
from augury.log import DRAFT_LOGGER as DRAFT_LOGGER
from augury.options import option as option
from augury.passes import Context as Context, Target as Target
from augury.sampling import SamplingParams as SamplingParams
from augury.text.tokenizer import StreamDecoder as StreamDecoder, Tokenizer as Tokenizer
from augury.types import (
    NO_DRAFT as NO_DRAFT,
    Draft as Draft,
    ModelInfo as ModelInfo,
    ModelOptions as ModelOptions,
    Verdict as Verdict,
)
