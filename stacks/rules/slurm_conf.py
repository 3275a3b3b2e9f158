"""What Slurm reads as an option's value, and which options slurm.conf has.

slurmctld ends at a name or a value that it does not know, and the cluster with it. Kinds of values
are those of slurm.conf(5) of 25.11, https://slurm.schedmd.com/slurm.conf.html, and of the parser
behind it (github.com/SchedMD/slurm, tag slurm-25-11-3-1, src/common/parse_value.c and
read_config.c), read 2026-11-22; a test asks the parser of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from stacks.schedule import slurm_seconds


class Kind(StrEnum):
    """How a value is read; the text says what to write."""

    TEXT = "any text"
    SWITCH = "YES or NO"
    UINT16 = "a number from 0 to 65535 or INFINITE"
    UINT32 = "a number from 0 to 4294967295 or INFINITE"
    UINT64 = "a number from 0 on or INFINITE"
    TIME = "minutes, HH:MM:SS, D-HH:MM:SS or INFINITE"
    FINITE_TIME = "minutes, HH:MM:SS or D-HH:MM:SS"
    STATE = "UP, DOWN, DRAIN or INACTIVE"
    SHARE = "NO, YES, YES:n from 2 on, FORCE, FORCE:n or EXCLUSIVE"
    CORES = "CR_Core, CR_Core_Memory, CR_Socket or CR_Socket_Memory"
    PREEMPTION = "OFF, CANCEL, REQUEUE or SUSPEND, with GANG, WITHIN or PRIORITY after a comma"
    IDLE_TIME = "seconds, INFINITE or -1"
    PERIOD = "NONE, NOW, DAILY, WEEKLY, MONTHLY, QUARTERLY or YEARLY"
    ENFORCEMENT = "ALL, ANY or NO"
    LEVEL = "quiet, fatal, error, info, verbose or debug to debug5"


def _table(names: Mapping[Kind, str]) -> Mapping[str, tuple[str, Kind]]:
    """Name in lower case, as Slurm compares it -> (name, kind)."""
    return MappingProxyType(
        {name.lower(): (name, kind) for kind, text in names.items() for name in text.split()}
    )


PARTITION: Final = _table(
    {
        Kind.TEXT: "AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind DenyAccounts "
        "DenyQos QOS Topology TRESBillingWeights",
        Kind.SWITCH: "Default DisableRootJobs ExclusiveTopo ExclusiveUser Hidden LLN "
        "PowerDownOnIdle ReqResv RootOnly",
        Kind.UINT16: "OverTimeLimit Priority PriorityJobFactor PriorityTier ResumeTimeout "
        "SuspendTimeout",
        Kind.UINT32: "GraceTime MaxCPUsPerNode MaxCPUsPerSocket MaxNodes MinNodes",
        Kind.UINT64: "DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode MaxMemPerCPU "
        "MaxMemPerNode",
        Kind.TIME: "DefaultTime MaxTime",
        Kind.STATE: "State",
        Kind.SHARE: "OverSubscribe Shared",
        Kind.CORES: "SelectTypeParameters",
        Kind.PREEMPTION: "PreemptMode",
        Kind.IDLE_TIME: "SuspendTime",
    }
)
"""Options behind PartitionName, with the older names `Priority` and `Shared`, still read."""
CLUSTER: Final = _table(
    {
        Kind.TEXT: """
AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost
AccountingStorageHost AccountingStorageParameters AccountingStoragePass AccountingStorageTRES
AccountingStorageType AccountingStoreFlags AcctGatherEnergyType AcctGatherFilesystemType
AcctGatherInterconnectType AcctGatherProfileType AuthAltParameters AuthAltTypes AuthInfo AuthType
BcastExclude BcastParameters BurstBufferParameters BurstBufferType CertgenParameters CertgenType
CertmgrParameters CertmgrType CliFilterParameters CliFilterPlugins ClusterName
CommunicationParameters CpuFreqDef CpuFreqGovernors CredType DataParserParameters DebugFlags
DependencyParameters DownNodes Epilog EpilogSlurmctld FederationParameters GpuFreqDef GresTypes
HashPlugin HealthCheckNodeState HealthCheckProgram HttpParserType InteractiveStepOptions
JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType JobCompHost JobCompLoc JobCompParams
JobCompPass JobCompPassScript JobCompType JobCompUser JobSubmitPlugins LaunchParameters Licenses
LogTimeFormat MailDomain MailProg MCSParameters MCSPlugin MetricsType MpiDefault MpiParams
NamespaceType NodeFeaturesPlugins NodeName NodeSet PartitionName PluginDir PlugStackConfig
PreemptParameters PreemptType PrEpParameters PrEpPlugins PriorityFlags PriorityParameters
PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType PriorityWeightTRES PrivateData
ProctrackType Prolog PrologFlags PrologSlurmctld PropagateResourceLimits
PropagateResourceLimitsExcept RebootProgram ReconfigFlags RequeueExit RequeueExitHold
ResumeFailProgram ResumeProgram ResvEpilog ResvProlog SbcastParameters SchedulerParameters
SchedulerType ScronParameters SelectType SelectTypeParameters SlurmctldAddr SlurmctldHost
SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPort SlurmctldPrimaryOffProg
SlurmctldPrimaryOnProg SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdSpoolDir SlurmdUser
SlurmSchedLogFile SlurmUser SrunEpilog SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes
SuspendExcParts SuspendExcStates SuspendProgram SwitchParameters SwitchType TaskEpilog TaskPlugin
TaskPluginParam TaskProlog TLSParameters TLSType TmpFS TopologyParam TopologyPlugin
UnkillableStepProgram UrlParserType X11Parameters
""",
        Kind.SWITCH: "AllowSpecResourcesUsage DisableRootJobs PriorityFavorSmall TrackWCKey UsePAM",
        Kind.UINT16: """
AccountingStoragePort AcctGatherNodeFreq BatchStartTimeout CompleteWait EioTimeout EpilogTimeout
FairShareDampeningFactor GroupUpdateForce GroupUpdateTime HealthCheckInterval InactiveLimit
JobFileAppend JobRequeue KillOnBadExit KillWait MaxTasksPerNode MessageTimeout OverTimeLimit
PrologEpilogTimeout PrologTimeout PropagatePrioProcess ResumeRate ResumeTimeout ResvOverRun
ReturnToService SchedulerTimeSlice SlurmctldTimeout SlurmdTimeout SlurmSchedLogLevel SuspendRate
SuspendTimeout TCPTimeout TreeWidth UnkillableStepTimeout VSizeFactor WaitTime
""",
        Kind.UINT32: """
EpilogMsgTime FirstJobId JobCompPort MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId
MaxNodeCount MaxStepCount MinJobAge PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare
PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS SlurmdPort
""",
        Kind.UINT64: "DefCPUPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode MaxMemPerCPU "
        "MaxMemPerNode",
        Kind.TIME: "PreemptExemptTime PriorityDecayHalfLife PriorityMaxAge",
        Kind.FINITE_TIME: "PriorityCalcPeriod",
        Kind.PREEMPTION: "PreemptMode",
        Kind.IDLE_TIME: "SuspendTime",
        Kind.PERIOD: "PriorityUsageResetPeriod",
        Kind.ENFORCEMENT: "EnforcePartLimits",
        Kind.LEVEL: "SlurmctldDebug SlurmctldSyslogDebug SlurmdDebug SlurmdSyslogDebug",
    }
)
"""Options of slurm.conf, without those that 25.11 calls defunct."""

_MOST: Final = {Kind.UINT16: 0xFFFF, Kind.UINT32: 0xFFFFFFFF, Kind.UINT64: 0xFFFFFFFFFFFFFFFF}
_BOUNDS: Final = {
    "FirstJobId": (1, 67_043_328),
    "MaxDBDMsgs": (10_000, 0xFFFFFFFF),
    "MaxJobCount": (1, 0xFFFFFFFF),
    "MaxJobId": (1, 67_108_863),
    "MaxStepCount": (1, 0xFFFFFFFF),
    "PropagatePrioProcess": (0, 2),
}
"""Options that take less than their kind."""
# Slurm would read 010 as eight, and takes 4k as 4096 where the number may be larger than 65535.
_NUMBER: Final = re.compile(r"(0|[1-9][0-9]{0,19})([kK]?)")
_ENDLESS: Final = ("INFINITE", "UNLIMITED")
_PREEMPTIONS: Final = ("OFF", "CLUSTER", "CANCEL", "REQUEUE", "SUSPEND", "ON")
_WORDS: Final[Mapping[Kind, re.Pattern[str]]] = {
    Kind.SWITCH: re.compile(r"(?i)yes|no"),
    Kind.STATE: re.compile(r"(?i)up|down|drain|inactive"),
    Kind.SHARE: re.compile(
        r"(?i)no|yes(:([2-9]|[1-9][0-9]{1,3}))?|force(:[1-9][0-9]{0,3})?|exclusive"
    ),
    Kind.CORES: re.compile(r"(?i)cr_(core|socket)(_memory)?"),
    Kind.IDLE_TIME: re.compile(r"(?i)-1|infinite|0|[1-9][0-9]{0,8}"),
    Kind.PERIOD: re.compile(r"(?i)none|now|daily|weekly|monthly|quarterly|yearly"),
    Kind.ENFORCEMENT: re.compile(r"(?i)all|any|yes|no"),
    Kind.LEVEL: re.compile(r"(?i)quiet|fatal|error|info|verbose|debug[2-5]?|[0-9]"),
}


def value_problem(option: tuple[str, Kind], value: str) -> str | None:
    """What to write instead of a value that Slurm refuses or misreads; None where it is right."""
    name, kind = option
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        fits = value.isascii() and value.isdecimal() and least <= int(value[:20]) <= most
        return None if fits else f"give a number from {least} to {most}"
    if kind in _WORDS:
        fits = _WORDS[kind].fullmatch(value) is not None
    elif kind in _MOST:
        fits = value.upper() in _ENDLESS or _is_number(kind, value)
    elif kind is Kind.TIME:
        fits = value.upper() in _ENDLESS or slurm_seconds(value) is not None
    elif kind is Kind.FINITE_TIME:
        fits = bool(slurm_seconds(value))
    elif kind is Kind.PREEMPTION:
        fits = _is_preemption(value.upper().split(","))
    else:
        fits = True
    return None if fits else f"give {kind}"


def _is_number(kind: Kind, value: str) -> bool:
    found = _NUMBER.fullmatch(value)
    if found is None or (found[2] and kind is Kind.UINT16):
        return False
    return int(found[1]) * (1024 if found[2] else 1) <= _MOST[kind]


def _is_preemption(modes: list[str]) -> bool:
    with_gang = "GANG" in modes and ("WITHIN" in modes or "PRIORITY" in modes)
    known = all(mode in (*_PREEMPTIONS, "GANG", "WITHIN", "PRIORITY") for mode in modes)
    return known and sum(mode in _PREEMPTIONS for mode in modes) <= 1 and not with_gang


def preemption_problem(lines: Iterable[tuple[str, str]]) -> str | None:
    """Why PreemptMode and PreemptType of the last lines of slurm.conf exclude each other, or None.

    Before them the operator writes REQUEUE and preempt/partition_prio (4.1.7,
    internal/render/common/configmap.go).
    """
    last = {"preemptmode": "REQUEUE", "preempttype": "preempt/partition_prio"}
    last |= {name.lower(): value for name, value in lines if name.lower() in last}
    modes = set(last["preemptmode"].upper().split(","))
    if modes in ({"SUSPEND"}, {"ON"}):
        return "PreemptMode=SUSPEND needs GANG too: write SUSPEND,GANG"
    is_off = not modes & {"CANCEL", "REQUEUE", "SUSPEND", "ON"}
    if is_off != (last["preempttype"].lower() == "preempt/none"):
        return (
            f"PreemptMode={last['preemptmode']} does not go with "
            f"PreemptType={last['preempttype']}: OFF goes with preempt/none alone; give both lines"
        )
    return None
