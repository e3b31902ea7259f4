"""For every plugin: hooks, options, errors, files and the log; the classes of the smaller kinds; the parts of commands."""

from augury.batch import Reservation as Reservation
from augury.cli import *
from augury.constraint import Constraint as Constraint, ConstraintSession as ConstraintSession
from augury.engine.adapters import Adapters as Adapters
from augury.engine.channel import Channel as Channel
from augury.engine.params import PromptProgress as PromptProgress
from augury.engine.stats import EngineStats as EngineStats, PromptToken as PromptToken, SlotStats as SlotStats
from augury.errors import (
    AuguryError as AuguryError,
    CapacityError as CapacityError,
    LostDeviceError as LostDeviceError,
    ModelFileError as ModelFileError,
    OptionError as OptionError,
    PluginError as PluginError,
    PromptTooLongError as PromptTooLongError,
    QueueFullError as QueueFullError,
    UnsupportedError as UnsupportedError,
)
from augury.extras import install_command as install_command, require_libraries as require_libraries
from augury.files.atomic_file import (
    AtomicFile as AtomicFile,
    is_being_written as is_being_written,
    locked as locked,
    no_room as no_room,
    not_stored as not_stored,
    write_atomically as write_atomically,
)
from augury.files.cache import cache_folder as cache_folder, checksum as checksum
from augury.files.models import (
    open_model as open_model,
    removable as removable,
    remove_model as remove_model,
    resolve as resolve,
    source_of as source_of,
    stored_models as stored_models,
)
from augury.hookspecs import hookimpl as hookimpl
from augury.interfaces import (
    FileFormat as FileFormat,
    FoundModel as FoundModel,
    MemoryManager as MemoryManager,
    Opened as Opened,
    Progress as Progress,
    Source as Source,
    StoredModel as StoredModel,
)
from augury.interfaces.plugin import API_VERSION as API_VERSION, Plugin as Plugin
from augury.log import get_logger as get_logger
from augury.model_info import RankHead as RankHead
from augury.options import (
    Spec as Spec,
    nearest as nearest,
    option as option,
    options_of as options_of,
    parse_specs as parse_specs,
    similar as similar,
)
from augury.plugins.constraints.schema import ONE_LINE as ONE_LINE, demands as demands, resolved as resolved
from augury.plugins.memory.contiguous import Contiguous as Contiguous
from augury.registry import Registry as Registry
from augury.sampling import SAMPLER_LETTERS as SAMPLER_LETTERS, sampling_options as sampling_options
from augury.slot_states import SlotStates as SlotStates, join_parts as join_parts, split_parts as split_parts
from augury.speculation.config import choose_drafters as choose_drafters
from augury.speculation.trials import Trial as Trial
from augury.text.chat_template import ChatTemplate as ChatTemplate, prompt_ids as prompt_ids
from augury.text.template_habits import arguments_of as arguments_of, with_ids as with_ids
from augury.text.tokenizer import Tokenizer as Tokenizer
from augury.types import Round as Round, Summary as Summary, TokenLogprob as TokenLogprob
