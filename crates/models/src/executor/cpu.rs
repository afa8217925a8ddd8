//! The CPU executor: slice kernels over one arena.

mod running;

use super::{
    awake::{is_affordable, keep_awake},
    check::check_steps,
    cost::{CpuCost, CpuSettings, attn_shape},
    observer::StepObserver,
    pass::{ExecError, LogitRows, Segment, dims},
};
use crate::{kernels::arena::Arena, model::Model};
use bytemuck::cast_slice;
use plimsoll_attention::Route;
use plimsoll_kvcache::BlockTable;
use plimsoll_prefill::CancelToken;
use plimsoll_program::{ArenaLayout, ChainId, Dims, MemoryPlan, Op, Planner, Program, Slot, SlotKind, Step};
use running::{Running, byte_range, part_work};
use std::sync::Arc;

/// Runs a model's program pass by pass, in an arena of exactly the planned size.
#[derive(Debug)]
pub struct CpuExecutor {
    model: Arc<Model>,
    settings: CpuSettings,
    pool: rayon::ThreadPool,
    /// Whether a pass keeps the pool's threads awake.
    keeps_awake: bool,
    planner: Planner,
    layout: ArenaLayout,
    /// What `layout` was made for.
    planned: Option<Dims>,
    arena: Arena,
    live: LiveTemporaries,
    blocks: BlockTable,
    cancel: CancelToken,
    /// Multiply-adds of a recurrence between two looks at `cancel`; kernels that take it look by themselves.
    part_work: u64,
}

/// The logits of a pass, in the executor's arena until the next pass.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    /// `[rows, vocab_size]`.
    pub values: &'a [f32],
    /// Rows that were asked for.
    pub rows: usize,
    /// Width of a row.
    pub vocab_size: usize,
}

impl<'a> Logits<'a> {
    /// The last row, if any was asked for.
    #[must_use]
    pub fn last(&self) -> Option<&'a [f32]> {
        self.values.chunks_exact(self.vocab_size).next_back()
    }
}

/// What a pass used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassStats {
    /// Size of the arena: the planned peak.
    pub arena_bytes: u64,
    /// End of the highest range that a step used.
    pub high_water_bytes: u64,
    /// Temporaries that no release list had freed when the pass ended.
    pub live_temporaries: usize,
}

impl CpuExecutor {
    /// An executor with its own threads.
    ///
    /// # Errors
    /// [`ExecError::Threads`] if the threads cannot be started, [`ExecError::Step`] if the program has a step that cannot run here.
    pub fn new(model: Arc<Model>, settings: CpuSettings) -> Result<Self, ExecError> {
        check_steps(model.architecture())?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(settings.threads)
            .thread_name(|index| format!("plimsoll-{index}"))
            .build()
            .map_err(|source| ExecError::Threads { threads: settings.threads, source })?;
        // Each thread has run once: what a thread takes is taken before anybody measures the process.
        pool.broadcast(|_| ());
        let live = LiveTemporaries::new(&model.architecture().program);
        Ok(Self {
            model,
            settings,
            pool,
            keeps_awake: is_affordable(settings.threads),
            planner: Planner::default(),
            layout: ArenaLayout::default(),
            planned: None,
            arena: Arena::default(),
            live,
            blocks: BlockTable::new(),
            cancel: CancelToken::default(),
            part_work: part_work(&settings),
        })
    }

    /// The model it runs.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The settings it runs with.
    #[must_use]
    pub fn settings(&self) -> CpuSettings {
        self.settings
    }

    /// The same executor, which gives up a running pass once `cancel` is set: at its next step, or in the middle of a product, of attention or of a
    /// recurrence, after the blocks that its threads have in hand.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// The same executor, whose threads sleep whenever a pass has nothing for them: for a process with other work on the same processors. Otherwise
    /// they look for work until the pass ends, if there are as many processors, and decoding is faster.
    #[must_use]
    pub fn with_sleeping_threads(mut self) -> Self {
        self.keeps_awake = false;
        self
    }

    /// The memory plan of a pass of these sizes: its peak is the arena that [`CpuExecutor::run`] will make.
    #[must_use]
    pub fn plan(&self, dims: &Dims) -> MemoryPlan {
        self.model.architecture().program.plan(dims, &self.cost())
    }

    /// Names of the kernels that a prompt of `rows` tokens takes, attention first: what the shapes and settings decide.
    #[must_use]
    pub fn routes(&self, rows: usize) -> Vec<String> {
        let program = &self.model.architecture().program;
        let mut routes = Vec::new();
        for step in program.chains().iter().flat_map(|chain| chain.steps()) {
            let Op::Attend { q, k, v, spec, .. } = &step.op else { continue };
            for rows in [rows, 1] {
                let shape = attn_shape(program, [*q, *k, *v], spec.window, self.settings.kv_dtype, rows, rows);
                let name = format!("attention:{}", Route::for_shape(&shape, &self.settings.attention()).name());
                if !routes.contains(&name) {
                    routes.push(name);
                }
            }
        }
        routes.push(format!("linear:{}", self.settings.linear_isa.name()));
        routes
    }

    /// The planned peak alone, without the timeline.
    pub fn planned_bytes(&mut self, dims: &Dims) -> u64 {
        self.make_layout(dims);
        self.layout.size_bytes()
    }

    fn cost(&self) -> CpuCost<'_> {
        CpuCost { weight_types: self.model.weight_types(), settings: self.settings }
    }

    fn make_layout(&mut self, dims: &Dims) {
        if self.planned == Some(*dims) {
            return;
        }
        let cost = CpuCost { weight_types: self.model.weight_types(), settings: self.settings };
        self.planner.layout_into(&self.model.architecture().program, dims, &cost, &mut self.layout);
        self.planned = Some(*dims);
    }

    /// Runs one pass: writes the rows' keys and values to their sequences and computes the logits asked for.
    ///
    /// A row's logits have the same bits however the rows are spread over passes and segments, with any number of threads. The threads look for work
    /// until the pass ends, which shows as load (see [`CpuExecutor::with_sleeping_threads`]).
    ///
    /// # Errors
    /// [`ExecError`]; sequences that took rows before the fault are cut back to where their segment starts.
    pub fn run<O: StepObserver>(
        &mut self,
        segments: &mut [Segment<'_>],
        logit_rows: LogitRows,
        observer: &mut O,
    ) -> Result<Logits<'_>, ExecError> {
        let model = Arc::clone(&self.model);
        let architecture = model.architecture();
        let vocab_size = architecture.dimensions.vocab_size;
        let dims = dims(segments, logit_rows, vocab_size)?;
        for segment in segments.iter_mut() {
            // Before any row is written, so that a state which cannot go back costs no key or value.
            let layer_fault = |source| ExecError::Kv { layer: fault_layer(&source), source };
            segment.sequence.truncate(segment.start).map_err(layer_fault)?;
        }
        self.make_layout(&dims);
        self.arena
            .resize(self.layout.size_bytes())
            .map_err(|source| ExecError::Arena { bytes: self.layout.size_bytes(), source })?;
        self.live.clear();

        let mut pass = Running {
            program: &architecture.program,
            model: &model,
            settings: self.settings,
            layout: &self.layout,
            arena: &mut self.arena,
            live: &mut self.live,
            blocks: &mut self.blocks,
            cancel: &self.cancel,
            part_work: self.part_work,
            dims,
            segments,
            observer,
        };
        pass.write_inputs(logit_rows);
        let keeps_awake = self.keeps_awake;
        let result = self.pool.install(|| {
            let mut work = || pass.chain(ChainId::MAIN, 0);
            if keeps_awake { keep_awake(work) } else { work() }
        });
        if let Err(error) = result {
            for segment in segments {
                undo(segment);
            }
            return Err(error);
        }
        for segment in segments {
            segment.sequence.commit();
        }
        let program = &architecture.program;
        let range = byte_range(program, &self.layout, architecture.ports.logits, &dims);
        Ok(Logits { values: cast_slice(self.arena.read(range)), rows: dims.logit_rows, vocab_size })
    }

    /// What the last pass used.
    #[must_use]
    pub fn stats(&self) -> PassStats {
        PassStats {
            arena_bytes: self.arena.size() as u64,
            high_water_bytes: self.arena.high_water() as u64,
            live_temporaries: self.live.count(),
        }
    }

    /// The same executor, which looks at its cancel flag after so many multiply-adds of a recurrence.
    #[cfg(test)]
    pub(crate) fn with_part_work(mut self, part_work: u64) -> Self {
        self.part_work = part_work;
        self
    }

    /// Gives the arena's pages back to the system; the next pass maps new ones.
    pub fn release_arena(&mut self) {
        // Shrinking asks the system for nothing and cannot fail.
        let _ = self.arena.resize(0);
    }
}

/// Takes a sequence back to where its segment starts; one that holds no more is as it was.
fn undo(segment: &mut Segment<'_>) {
    if let Err(error) = segment.sequence.truncate(segment.start) {
        // The pass was let in only because this cut is possible, and no state goes ahead without a commit.
        unreachable!("a sequence cannot go back to the start of its segment: {error}");
    }
}

/// The layer at which a sequence refused to go back.
fn fault_layer(error: &plimsoll_kvcache::Error) -> usize {
    match error {
        plimsoll_kvcache::Error::NeedsPrefill { layer, .. } => *layer,
        _ => 0,
    }
}

/// Which temporaries are live, by the release lists: a check on the lists, at the cost of a bit per slot.
#[derive(Debug)]
struct LiveTemporaries {
    live: Vec<bool>,
}

impl LiveTemporaries {
    fn new(program: &Program) -> Self {
        Self { live: vec![false; program.slots().len()] }
    }

    fn clear(&mut self) {
        self.live.fill(false);
    }

    fn written(&mut self, program: &Program, step: &Step) {
        step.op.visit(|slot, access| {
            let (root, _) = program.root(slot);
            if access != plimsoll_program::Access::Read && program.slot(root).kind == SlotKind::Temporary {
                self.live[root.index()] = true;
            }
        });
    }

    fn released(&mut self, roots: &[Slot]) {
        for root in roots {
            self.live[root.index()] = false;
        }
    }

    fn count(&self) -> usize {
        self.live.iter().filter(|&&live| live).count()
    }
}
