//! `plimsoll doctor`: what this machine has, what it allows and who says so, and which models are here.

mod machine;

use crate::{
    cli::{Beyond, DeviceArg, DoctorArgs, Limit, hub_settings},
    error::AppError,
    fetch::{self, MODELS},
    settings,
};
use machine::InstructionSet;
use plimsoll_memguard::{ByteSize, Ceilings, Policy, Regions, RunsOn, system_probe};
use serde::Serialize;
use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

/// Everything found; field names are part of the binary's contract.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    cpu: Cpu,
    devices: Vec<Device>,
    memory: Memory,
    probes: Vec<Probe>,
    cache: Cache,
}

#[derive(Debug, Serialize)]
struct Cpu {
    /// Absent where the system does not say.
    model: Option<String>,
    architecture: &'static str,
    /// Threads that a run takes.
    threads: usize,
    /// Processors that this process may use.
    available_threads: usize,
    instruction_sets: Vec<InstructionSet>,
}

#[derive(Debug, Serialize)]
struct Device {
    name: &'static str,
    available: bool,
    why: &'static str,
}

#[derive(Debug, Serialize)]
struct Memory {
    ceilings: Vec<CeilingReport>,
    /// What each policy leaves of them.
    policies: Vec<PolicyReport>,
    /// What a run would get with the flags and the environment of this call.
    budget_bytes: Option<u64>,
    budget_source: String,
}

#[derive(Debug, Serialize)]
struct CeilingReport {
    source: String,
    bytes: u64,
    used_bytes: Option<u64>,
    /// A reading that moves by itself, and is no budget.
    momentary: bool,
    /// Whether it is the one that limits a run.
    limits: bool,
}

#[derive(Debug, Serialize)]
struct PolicyReport {
    policy: String,
    bytes: u64,
    reserve_bytes: u64,
    limited_by: String,
}

#[derive(Debug, Serialize)]
struct Probe {
    name: &'static str,
    works: bool,
    /// What it says now.
    bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Cache {
    /// Absent if this user has no cache folder.
    folder: Option<PathBuf>,
    models: Vec<CachedModel>,
    /// The folder that `hf:` names share with other programs.
    hub_folder: Option<PathBuf>,
    hub_models: Vec<String>,
}

#[derive(Debug, Serialize)]
struct CachedModel {
    name: &'static str,
    path: PathBuf,
    bytes: u64,
}

/// Looks around, and prints what it finds.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), AppError> {
    if args.engine.device == DeviceArg::Metal {
        return Err(AppError::NoMetal);
    }
    let report = Report::new(args)?;
    let text = match args.json {
        true => serde_json::to_string(&report).map_err(io::Error::from).map_err(AppError::Stdout)? + "\n",
        false => report.text(),
    };
    io::stdout().lock().write_all(text.as_bytes()).map_err(AppError::Stdout)
}

impl Report {
    fn new(args: &DoctorArgs) -> Result<Self, AppError> {
        let settings = settings::cpu(&args.engine, None)?;
        let cpu = Cpu {
            model: machine::cpu_model(),
            architecture: std::env::consts::ARCH,
            threads: settings.threads,
            available_threads: machine::available_threads(),
            instruction_sets: machine::instruction_sets(settings.linear_isa),
        };
        let devices = vec![
            Device { name: "cpu", available: true, why: "" },
            Device { name: "metal", available: false, why: "this version has no Metal kernels" },
        ];
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            cpu,
            devices,
            memory: memory(args),
            probes: probes(),
            cache: cache(args),
        })
    }

    fn text(&self) -> String {
        let size = |bytes: u64| ByteSize::new(bytes).to_string();
        let mut text = format!("plimsoll {}\n\n", self.version);
        let Cpu { model, architecture, threads, available_threads, instruction_sets } = &self.cpu;
        let model = model.as_deref().unwrap_or("unknown model");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "processor: {model} ({architecture})");
        let _ = match threads > available_threads {
            true => writeln!(text, "  threads: {threads}, more than the {available_threads} that this process may use"),
            false => writeln!(text, "  threads: {threads} of {available_threads} that this process may use"),
        };
        for set in instruction_sets {
            let chosen = if set.chosen { "chosen" } else { "" };
            let state = if set.available { "works" } else { "no" };
            let _ = writeln!(text, "{}", format!("  {:<8}{state:<7}{chosen:<8}{}", set.name, set.why).trim_end());
        }
        for device in &self.devices {
            let state = if device.available { "works" } else { "no" };
            let _ = writeln!(text, "{}", format!("device {}: {state}  {}", device.name, device.why).trim_end());
        }
        let _ = writeln!(text, "\nmemory ceilings, read now:");
        for ceiling in &self.memory.ceilings {
            let used = ceiling.used_bytes.map_or_else(String::new, |bytes| format!(", {} of it used", size(bytes)));
            let note = match (ceiling.limits, ceiling.momentary) {
                (true, _) => "  <- limits a run",
                (false, true) => "  (moves: gates pressure, no budget)",
                (false, false) => "",
            };
            let _ = writeln!(text, "{:>13}  {}{used}{note}", size(ceiling.bytes), ceiling.source);
        }
        if self.memory.ceilings.is_empty() {
            let _ = writeln!(text, "  none could be read");
        }
        let _ = writeln!(text, "budgets by policy:");
        for policy in &self.memory.policies {
            let (bytes, reserve) = (size(policy.bytes), size(policy.reserve_bytes));
            let _ = writeln!(text, "{bytes:>13}  {:<11} {reserve} stay free of {}", policy.policy, policy.limited_by);
        }
        let budget = match self.memory.budget_bytes {
            None => "unlimited".to_owned(),
            Some(0) => "nothing, and would be refused".to_owned(),
            Some(bytes) => size(bytes),
        };
        let _ = writeln!(text, "a run would get: {budget} ({})", self.memory.budget_source);
        let _ = writeln!(text, "\nprobes:");
        for probe in &self.probes {
            let value = probe.bytes.map_or_else(|| "nothing: it does not work here".to_owned(), size);
            let _ = writeln!(text, "  {}: {value}", probe.name);
        }
        let folder = |folder: &Option<PathBuf>| {
            folder.as_ref().map_or_else(|| "none".to_owned(), |folder| folder.display().to_string())
        };
        let _ = writeln!(text, "\nmodels by short name, in {}:", folder(&self.cache.folder));
        for model in &self.cache.models {
            let _ = writeln!(text, "{:>13}  {}", size(model.bytes), model.name);
        }
        if self.cache.models.is_empty() {
            let _ = writeln!(text, "  none yet: plimsoll models list");
        }
        let _ = writeln!(text, "models by hf: name, in {}:", folder(&self.cache.hub_folder));
        for name in &self.cache.hub_models {
            let _ = writeln!(text, "  hf:{}", crate::one_line(name, 200));
        }
        if self.cache.hub_models.is_empty() {
            let _ = writeln!(text, "  none yet");
        }
        text
    }
}

fn memory(args: &DoctorArgs) -> Memory {
    let ceilings = Ceilings::detect();
    let wanted = args.budget.memory_policy;
    let binding = ceilings.clone().binding(RunsOn::Cpu);
    let limiting = binding.budget(wanted).filter(|_| args.budget.memory_budget.is_none());
    let own = (!Policy::NAMED.contains(&wanted)).then_some(wanted);
    let policies = Policy::NAMED.into_iter().chain(own).filter_map(|policy| {
        let budget = binding.budget(policy)?;
        Some(PolicyReport {
            policy: policy.to_string(),
            bytes: budget.bytes,
            reserve_bytes: budget.reserve_bytes,
            limited_by: budget.limited_by.source.to_string(),
        })
    });
    let policies = policies.collect();
    let limit = match args.budget.beyond(&ceilings) {
        // What the machine does not have, no run gets.
        Some(Beyond { given, lowest, source }) => {
            Limit { bytes: Some(lowest.bytes()), source: format!("{source}, less than --memory-budget {given}") }
        }
        None => args.budget.limit(&ceilings),
    };
    let report = ceilings.iter().map(|ceiling| CeilingReport {
        source: ceiling.source.to_string(),
        bytes: ceiling.bytes,
        used_bytes: ceiling.used_bytes,
        momentary: ceiling.source.is_momentary(),
        limits: limiting.as_ref().is_some_and(|budget| budget.limited_by == *ceiling),
    });
    Memory { ceilings: report.collect(), policies, budget_bytes: limit.bytes, budget_source: limit.source }
}

fn probes() -> Vec<Probe> {
    let footprint = system_probe().and_then(|probe| probe.sample().footprint);
    let regions = Regions::read().map(|regions| regions.footprint_bytes());
    [("footprint of this process", footprint), ("the same by regions", regions)]
        .map(|(name, bytes)| Probe { name, works: bytes.is_some(), bytes })
        .into()
}

fn cache(args: &DoctorArgs) -> Cache {
    let folder = fetch::cache_folder(args.cache.cache_dir.as_deref()).ok();
    let models = MODELS.iter().filter_map(|model| {
        let path = model.cached(folder.as_ref()?)?;
        Some(CachedModel { name: model.name, path, bytes: model.bytes })
    });
    let models = models.collect();
    // A faulty setting is told of by whoever needs it.
    let hub_folder = hub_settings().ok().map(|settings| settings.cache);
    let mut hub_models: Vec<String> = hub_folder
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("models--")?.replacen("--", "/", 1)))
        .collect();
    hub_models.sort();
    Cache { folder, models, hub_folder, hub_models }
}
