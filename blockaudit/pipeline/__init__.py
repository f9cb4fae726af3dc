"""The conductor: source and manifest in, report out. Straight lines, no branch per family."""

from blockaudit.pipeline.audit import Progress as Progress
from blockaudit.pipeline.conform import conform as conform
from blockaudit.pipeline.conform import follows as follows
from blockaudit.pipeline.converting import Writing as Writing
from blockaudit.pipeline.converting import convert as convert
from blockaudit.pipeline.drafting import draft as draft
from blockaudit.pipeline.inspect import LEVELS as LEVELS
from blockaudit.pipeline.inspect import inspect as inspect
from blockaudit.pipeline.inspect import levels_of as levels_of
from blockaudit.pipeline.inspect import models_of as models_of
from blockaudit.pipeline.manifest_importing import import_manifest as import_manifest
from blockaudit.pipeline.map_drafting import MapDraft as MapDraft
from blockaudit.pipeline.map_drafting import draft_map as draft_map
from blockaudit.pipeline.map_importing import import_map as import_map
from blockaudit.pipeline.mapping import check_map as check_map
from blockaudit.pipeline.maps import list_maps as list_maps
from blockaudit.pipeline.maps import show_map as show_map
from blockaudit.pipeline.traces import compare_traces as compare_traces
from blockaudit.pipeline.traces import record_trace as record_trace
from blockaudit.pipeline.traces import trace_sites as trace_sites
