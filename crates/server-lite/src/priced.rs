//! A model as far as its price goes: its program where it has one, a closed form where not. No weight is read.

use crate::{
    ALLOCATOR,
    cli::{EngineArgs, Subject, SubjectArgs},
    error::{AppError, ConfigFault},
    facts,
    fetch::Sources,
    interrupt::interruptible,
    price::{self, ChunkPriced},
    run, settings,
};
use plimsoll_memguard::{
    Config, Estimate, EstimateError, EstimateSettings, Pass, Profile, Registry, StorageFormat, TransientSource,
    WeightFormats, system_probe,
};
use plimsoll_models::{
    Checkpoint, CpuCost, CpuProfile, CpuSettings, FolderError, LoadPlan, ModelError, Outline, OutlineTypes,
    arch::Architecture, sampler::SamplerParams,
};
use plimsoll_prefill::{CancelToken, DEFAULT_MAX_ROWS};
use serde_json::{Map, Value};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Largest config.json; models' own settings files are held to the same.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The mark of UTF-8 that some editors put before a text.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Heap of a tokenizer for each token of its vocabulary, where there is none to be measured: SmolLM2's takes 43 bytes a token,
/// Gemma 3's 28.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 48;

/// What loading leaves resident in a run and not here: buffers that the allocator keeps, stacks of the threads that packed.
const LOADING_RESIDUE_BYTES: u64 = 768 << 10;

/// The same for each thread.
const LOADING_RESIDUE_BYTES_PER_THREAD: u64 = 64 << 10;

/// Measured sizes differ by some pages from one process to the next; rounded up to this, an estimate is the same each time.
const OVERHEAD_GRANULE_BYTES: u64 = 256 << 10;

/// How much more overhead an estimate may state than a run measures.
pub(crate) const OVERHEAD_SLACK_BYTES: u64 = 2 << 20;

/// Bytes for each id of a prompt, in a vector that doubles.
const PROMPT_BYTES_PER_TOKEN: u64 = 8;

/// A model that can be priced.
pub(crate) struct Priced {
    pub(crate) name: String,
    /// Where the model of `--model` was found; `None` for one that is not here, and for `--config`.
    pub(crate) path: Option<PathBuf>,
    kind: Kind,
    settings: CpuSettings,
    pub(crate) vocab_size: usize,
    /// Longest context the model was trained for, where it is said.
    pub(crate) trained_context: Option<usize>,
    /// What a reader must know about the figures, a sentence each.
    pub(crate) notes: Vec<String>,
    /// What reading the text side takes while it is read; a run reserves it before anything but the weights.
    pub(crate) loading_bytes: u64,
    /// What is resident in this process beside the weights once everything else is read.
    resident_bytes: u64,
}

enum Kind {
    /// Checked against the tensors of a file or folder.
    Plan(Box<LoadPlan>),
    /// Of settings alone. The bytes of the weights are given where they are known better.
    Outline { outline: Box<Outline>, weights_bytes: Option<u64> },
    /// Without a program, for this reason.
    Closed { estimate: Estimate, why: String },
}

impl Priced {
    /// Reads headers and settings of the model that the arguments name.
    pub(crate) fn read(
        args: &SubjectArgs,
        engine: &EngineArgs,
        chunk_rows: Option<usize>,
        sources: &Sources,
        cancel: &CancelToken,
    ) -> Result<Self, AppError> {
        let reader = Reader { engine, settings: settings::cpu(engine, chunk_rows)?, chunk_rows, cancel };
        match args.subject() {
            Subject::Model(model) => {
                let path = match sources.find(model) {
                    Err(AppError::NotFetched { name }) => return reader.not_fetched(name),
                    found => found?,
                };
                if path.is_dir() && !path.join("config.json").exists() {
                    return Err(AppError::ModelFolder { path });
                }
                if is_settings(&path) {
                    let hint = format!("by its settings alone: --config {}", path.display());
                    return Err(AppError::SettingsFile { path, hint });
                }
                let priced = reader.checkpoint(path.clone(), true)?;
                Ok(Self { path: Some(path), ..priced })
            }
            Subject::Config(path) => reader.header(path),
        }
    }

    /// Where the transient figure comes from.
    pub(crate) fn transient_source(&self) -> TransientSource {
        match &self.kind {
            Kind::Plan(_) | Kind::Outline { .. } => TransientSource::Plan,
            Kind::Closed { estimate, .. } => estimate.transient_source(),
        }
    }

    /// The program and what prices its steps; for a closed form, why there is none.
    pub(crate) fn program(&self) -> Result<(&Architecture, CpuCost<'_>), &str> {
        let (architecture, weight_types) = match &self.kind {
            Kind::Plan(plan) => (plan.architecture(), plan.weight_types()),
            Kind::Outline { outline, .. } => (outline.architecture(), outline.weight_types()),
            Kind::Closed { why, .. } => return Err(why),
        };
        Ok((architecture, CpuCost { weight_types, settings: self.settings }))
    }

    pub(crate) fn settings(&self) -> &CpuSettings {
        &self.settings
    }

    /// What a run of a prompt of this length would measure beside weights, KV and transients, rounded up. `run` reserves what it
    /// measures, which is at most this and at least 2 MiB less; a test holds both together.
    pub(crate) fn overhead_bytes(&self, prompt_tokens: usize) -> u64 {
        let prompt = PROMPT_BYTES_PER_TOKEN.saturating_mul(prompt_tokens as u64);
        let resident = self.resident_in_a_run().saturating_add(prompt);
        let sampling = price::sampling_bytes(&SamplerParams::default(), self.vocab_size);
        let bytes = price::overhead_bytes(resident, 0, sampling);
        bytes.checked_next_multiple_of(OVERHEAD_GRANULE_BYTES).unwrap_or(u64::MAX)
    }

    /// What is resident in a run beside weights and prompt: that of this process, and what only a load leaves behind.
    fn resident_in_a_run(&self) -> u64 {
        let residue = LOADING_RESIDUE_BYTES + LOADING_RESIDUE_BYTES_PER_THREAD * self.settings.threads as u64;
        self.resident_bytes.saturating_add(residue)
    }

    /// What a run reserves while it reads the weights, beside them; an upper bound.
    pub(crate) fn weights_loading_bytes(&self, quantizes: bool) -> u64 {
        let bytes = price::loading_bytes(self.resident_in_a_run(), self.settings.threads, quantizes);
        bytes.checked_next_multiple_of(OVERHEAD_GRANULE_BYTES).unwrap_or(u64::MAX)
    }
}

impl ChunkPriced for Priced {
    fn kv_bytes_in_chunks(&self, context_tokens: usize, max_rows: usize) -> u64 {
        let of = |profile: CpuProfile<'_>| profile.with_max_chunk_rows(max_rows).kv_bytes(context_tokens);
        match &self.kind {
            Kind::Plan(plan) => of(CpuProfile::of_plan(plan, self.settings)),
            Kind::Outline { outline, .. } => of(CpuProfile::of_outline(outline, self.settings)),
            // A closed form has the size of a chunk in it.
            Kind::Closed { estimate, .. } => estimate.kv_bytes(context_tokens),
        }
    }
}

impl Profile for Priced {
    fn weights_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Plan(plan) => plan.weights_bytes(),
            Kind::Outline { outline, weights_bytes } => weights_bytes.unwrap_or_else(|| outline.weights_bytes()),
            Kind::Closed { estimate, .. } => estimate.weights_bytes(),
        }
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        match &self.kind {
            Kind::Plan(plan) => CpuProfile::of_plan(plan, self.settings).kv_bytes(context_tokens),
            Kind::Outline { outline, .. } => CpuProfile::of_outline(outline, self.settings).kv_bytes(context_tokens),
            Kind::Closed { estimate, .. } => estimate.kv_bytes(context_tokens),
        }
    }

    fn transient_bytes(&self, pass: &Pass) -> u64 {
        match &self.kind {
            Kind::Plan(plan) => CpuProfile::of_plan(plan, self.settings).transient_bytes(pass),
            Kind::Outline { outline, .. } => CpuProfile::of_outline(outline, self.settings).transient_bytes(pass),
            Kind::Closed { estimate, .. } => estimate.transient_bytes(pass),
        }
    }
}

struct Reader<'a> {
    engine: &'a EngineArgs,
    settings: CpuSettings,
    chunk_rows: Option<usize>,
    cancel: &'a CancelToken,
}

impl Reader<'_> {
    /// A GGUF file or a folder, header by header. `with_text`: the tokenizer is read too, as a run does, so that its size is measured.
    fn checkpoint(&self, path: PathBuf, with_text: bool) -> Result<Priced, AppError> {
        let fault = |source| AppError::Model { path: path.clone(), source: Box::new(source) };
        let checkpoint = Checkpoint::open(&path).map_err(|error| match error {
            // Its settings are enough for an estimate.
            ModelError::Folder(source @ FolderError::NoWeights { .. }) => {
                AppError::NoWeights { path: path.clone(), source }
            }
            error => fault(error),
        })?;
        let plan = match LoadPlan::with_options(&checkpoint, &settings::loading(self.engine)) {
            Ok(plan) => plan,
            Err(error) => return self.without_program(&path, &checkpoint, error),
        };
        let (name, dimensions) = (plan.name().to_owned(), plan.architecture().dimensions);
        let mut notes = Vec::new();
        let mut loading_bytes = 0;
        let mut unread_bytes = 0;
        // Kept until it is measured.
        let mut text = None;
        if with_text {
            let vocab_size = dimensions.vocab_size;
            loading_bytes = run::loading_bytes(&checkpoint);
            text = interruptible(self.cancel, "reading the tokenizer", move || {
                let text = run::read_text(&checkpoint, vocab_size, false);
                text.inspect_err(|error| tracing::debug!(%error, "no text side")).ok()
            })?;
            if text.is_none() {
                notes.push("the model has no tokenizer that can be read: a run takes token ids alone".to_owned());
            }
        } else {
            unread_bytes = TOKENIZER_BYTES_PER_TOKEN.saturating_mul(dimensions.vocab_size as u64);
        }
        let resident_bytes = resident_bytes().saturating_add(unread_bytes);
        drop(text);
        Ok(Priced {
            name,
            path: None,
            kind: Kind::Plan(Box::new(plan)),
            settings: self.settings,
            vocab_size: dimensions.vocab_size,
            trained_context: Some(dimensions.context_length),
            notes,
            loading_bytes,
            resident_bytes,
        })
    }

    /// The closed form of a checkpoint that has no program here; `error` says why.
    fn without_program(&self, path: &Path, checkpoint: &Checkpoint, error: ModelError) -> Result<Priced, AppError> {
        let settings = self.closed_settings();
        if !is_about_the_program(&error) {
            return Err(AppError::Model { path: path.to_owned(), source: Box::new(error) });
        }
        let why = cannot_run(&error);
        let refused = |source| refusal(path, error, source);
        match checkpoint {
            Checkpoint::Gguf(gguf) => {
                let estimate = Registry::builtin().from_metadata(gguf, &settings).map_err(refused)?;
                let text = |key: &str| gguf.find_str(key).ok().flatten().map(str::to_owned);
                let architecture = text("general.architecture").unwrap_or_default();
                let tokens = plimsoll_memguard::Metadata::array_len(gguf, "tokenizer.ggml.tokens").unwrap_or(0);
                let context = plimsoll_memguard::Metadata::number(gguf, &format!("{architecture}.context_length"));
                let context = context.and_then(|context| usize::try_from(context).ok());
                let facts = Facts {
                    name: text("general.name").unwrap_or(architecture),
                    vocab_size: tokens,
                    trained_context: context,
                };
                Ok(self.closed(facts, estimate, why))
            }
            Checkpoint::Folder(folder) => {
                let config = Value::Object(folder.config().clone());
                let settings = EstimateSettings { weights_bytes: Some(folder.weight_file_bytes()), ..settings };
                let (estimate, facts) = closed_form(&config, &settings).map_err(refused)?;
                Ok(self.closed(facts, estimate, why))
            }
        }
    }

    /// A file of which the header is read: a GGUF file, or a config.json.
    fn header(&self, path: &Path) -> Result<Priced, AppError> {
        // A folder stands for the settings in it.
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let fault = |source| AppError::File { doing: "read", path: path.clone(), source };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(AppError::Usage(format!("--config {}: it is no regular file", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(AppError::Usage(format!("--config {}: there is no such file", path.display())));
            }
            Err(error) => return Err(fault(error)),
        }
        let mut file = File::open(&path).map_err(fault)?;
        let mut bytes = Vec::new();
        file.by_ref().take(4).read_to_end(&mut bytes).map_err(fault)?;
        if bytes == *b"GGUF" {
            return self.checkpoint(path, false);
        }
        file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(fault)?;
        let broken = |fault| AppError::Config { path: path.clone(), fault };
        let length = bytes.len() as u64;
        if length > MAX_CONFIG_BYTES {
            return Err(broken(ConfigFault::TooLarge { bytes: length, max_bytes: MAX_CONFIG_BYTES }));
        }
        match serde_json::from_slice(bytes.strip_prefix(UTF8_MARK).unwrap_or(&bytes)) {
            Ok(Value::Object(config)) => self.config(&path, config),
            Ok(_) => Err(broken(ConfigFault::NoObject)),
            Err(error) => Err(broken(ConfigFault::Json(error))),
        }
    }

    /// The settings of a folder.
    fn config(&self, path: &Path, config: Map<String, Value>) -> Result<Priced, AppError> {
        let types = settings::loading(self.engine).quantize.map_or_else(OutlineTypes::default, OutlineTypes::all);
        let error = match Outline::from_config(&config, types) {
            Ok(outline) => {
                let note = "weights by config.json alone, KV and transients by the program".to_owned();
                let name = name_of(&Config::new(&Value::Object(config)));
                return Ok(self.outline(name, outline, None, note));
            }
            Err(error) => error,
        };
        // Without a field that only a program needs, there is a closed form still.
        if !is_about_the_program(&error) && !matches!(error, ModelError::MissingField { .. }) {
            return Err(AppError::Model { path: path.to_owned(), source: Box::new(error) });
        }
        let why = cannot_run(&error);
        let closed = closed_form(&Value::Object(config), &self.closed_settings());
        let (estimate, facts) = closed.map_err(|source| refusal(path, error, source))?;
        Ok(self.closed(facts, estimate, why))
    }

    /// A packaged model that is not on this machine: what is known of it beforehand.
    fn not_fetched(&self, name: String) -> Result<Priced, AppError> {
        let Some((config, weights_bytes)) = facts::of(&name) else { return Err(AppError::NotFetched { name }) };
        let fault = |source| AppError::Model { path: PathBuf::from(&name), source: Box::new(source) };
        let outline = Outline::from_config(&config, OutlineTypes::default()).map_err(fault)?;
        let note = format!("not fetched yet: weights as they are known of {name}, KV and transients by the program");
        Ok(self.outline(name, outline, Some(weights_bytes), note))
    }

    fn outline(&self, name: String, outline: Outline, weights_bytes: Option<u64>, note: String) -> Priced {
        let dimensions = outline.architecture().dimensions;
        let unread = TOKENIZER_BYTES_PER_TOKEN.saturating_mul(dimensions.vocab_size as u64);
        Priced {
            name,
            path: None,
            kind: Kind::Outline { outline: Box::new(outline), weights_bytes },
            settings: self.settings,
            vocab_size: dimensions.vocab_size,
            trained_context: Some(dimensions.context_length),
            notes: vec![note],
            loading_bytes: 0,
            resident_bytes: resident_bytes().saturating_add(unread),
        }
    }

    fn closed(&self, facts: Facts, estimate: Estimate, why: String) -> Priced {
        let Facts { name, vocab_size, trained_context } = facts;
        let unread = TOKENIZER_BYTES_PER_TOKEN.saturating_mul(vocab_size as u64);
        Priced {
            name,
            path: None,
            notes: vec![why.clone(), "all figures are closed forms: estimates".to_owned()],
            kind: Kind::Closed { estimate, why },
            settings: self.settings,
            vocab_size,
            trained_context,
            loading_bytes: 0,
            resident_bytes: resident_bytes().saturating_add(unread),
        }
    }

    /// Closed forms with what a run on this machine would be set to.
    fn closed_settings(&self) -> EstimateSettings {
        let quantized = settings::loading(self.engine).quantize.and_then(|kind| {
            let elements = u32::try_from(kind.block_elements()).ok()?;
            let bytes = u32::try_from(kind.block_bytes()).ok()?;
            let all = WeightFormats::all(StorageFormat { elements, bytes });
            Some(WeightFormats { vectors: StorageFormat::F32, ..all })
        });
        EstimateSettings {
            weights: quantized,
            kv_element_bytes: self.settings.kv_dtype.bytes(),
            state_buffers: 2,
            chunk_rows: self.chunk_rows.unwrap_or(DEFAULT_MAX_ROWS),
            ..EstimateSettings::default()
        }
    }
}

/// Whether a file is whole, and only its architecture or its types are not run here.
fn is_about_the_program(error: &ModelError) -> bool {
    matches!(
        error,
        ModelError::UnknownArchitecture { .. }
            | ModelError::Unsupported { .. }
            | ModelError::UnknownField { .. }
            | ModelError::TensorType { .. }
            | ModelError::UnusedTensor { .. }
    )
}

/// Whether a path that was given for a model is that of settings, such as a config.json.
pub(crate) fn is_settings(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|ending| ending == "json")
}

/// Why there is a closed form and no plan.
fn cannot_run(error: &ModelError) -> String {
    match error {
        ModelError::UnknownArchitecture { found, .. } => {
            format!("there is no program for {found}: plimsoll cannot run it")
        }
        other => format!("plimsoll cannot run this model: {other}"),
    }
}

/// What a file that has no program says of itself.
struct Facts {
    name: String,
    vocab_size: usize,
    trained_context: Option<usize>,
}

/// The closed form of a config.json, which is checked field by field as it is read.
fn closed_form(config: &Value, settings: &EstimateSettings) -> Result<(Estimate, Facts), EstimateError> {
    let estimate = Registry::builtin().from_config(config, settings)?;
    let config = Config::new(config);
    let facts = Facts {
        name: name_of(&config),
        vocab_size: config.required("vocab_size")?,
        trained_context: config.optional_size("max_position_embeddings")?,
    };
    Ok((estimate, facts))
}

fn name_of(config: &Config<'_>) -> String {
    config.names().next().unwrap_or_default().to_owned()
}

/// Why there is neither a program nor a closed form: what the closed form found wrong with the file, unless it knows less of it than the program.
fn refusal(path: &Path, error: ModelError, source: EstimateError) -> AppError {
    let path = path.to_owned();
    let is_known = !matches!(error, ModelError::UnknownArchitecture { .. });
    match (&error, &source) {
        (_, EstimateError::NoArchitecture | EstimateError::UnknownArchitecture { .. }) if is_known => {
            AppError::Model { path, source: Box::new(error) }
        }
        (ModelError::MissingField { .. }, EstimateError::MissingField { .. }) => {
            AppError::Model { path, source: Box::new(error) }
        }
        _ => AppError::Estimate { path, source },
    }
}

/// What the system charges to this process now.
fn resident_bytes() -> u64 {
    let footprint = system_probe().and_then(|probe| probe.sample().footprint).unwrap_or(0);
    footprint.max(ALLOCATOR.live_bytes())
}
