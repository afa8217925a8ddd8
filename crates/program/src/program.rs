//! The finished program and its look-ups, all by index.

use std::fmt;

use crate::liveness::Schedule;
use crate::{Dims, Op, Slot, SlotInfo, SlotKind};

/// Names one step of a program, nested chains included. Numbered chain by chain, the main chain first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StepId(pub(crate) u32);

impl StepId {
    /// Position in a list of all steps, from 0 to [`Program::step_count`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a program has fewer than 2^32 steps"))
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one chain of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId(pub(crate) u32);

impl ChainId {
    /// The chain a pass starts with.
    pub const MAIN: Self = Self(0);

    /// Position in [`Program::chains`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn from_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("a program has fewer than 2^32 chains"))
    }
}

/// Names a scope's text, so that steps and timelines can carry it as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Label(pub(crate) u32);

/// One operation of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its number in the whole program.
    pub id: StepId,
    /// What it does.
    pub op: Op,
    /// Scope it was recorded in: see [`Program::label`].
    pub label: Label,
}

/// Steps that run one after the other, with what is released after each.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    pub(crate) steps: Vec<Step>,
    /// The step that runs this chain, and its chain; `None` for the main chain.
    pub(crate) parent: Option<(ChainId, usize)>,
    /// Released slots of all steps, one after the other.
    pub(crate) released: Vec<Slot>,
    /// Where the slots of each step start in `released`; one longer than `steps`.
    pub(crate) release_starts: Vec<u32>,
}

impl Chain {
    /// The steps in the order they run.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Roots that no later step needs once step `index` of this chain has run.
    ///
    /// # Panics
    /// If the chain has no step `index`.
    pub fn release(&self, index: usize) -> &[Slot] {
        &self.released[self.release_starts[index] as usize..self.release_starts[index + 1] as usize]
    }
}

/// A model as one list of steps over slots: what the planner prices, the executor runs and the release lists free.
///
/// Made by a [`ProgramBuilder`](crate::ProgramBuilder); immutable. Every look-up is one or two array reads.
///
/// # Panics
/// Methods that take a [`Slot`], [`StepId`], [`ChainId`] or [`Label`] panic on one of a larger program.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub(crate) slots: Vec<SlotInfo>,
    pub(crate) owners: Vec<ChainId>,
    pub(crate) chains: Vec<Chain>,
    /// Chain and position of every step.
    pub(crate) positions: Vec<(ChainId, u32)>,
    pub(crate) labels: Vec<String>,
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
    pub(crate) constants: Vec<Slot>,
    pub(crate) states: Vec<Slot>,
    pub(crate) schedule: Schedule,
}

impl Program {
    /// All slots, by [`Slot::index`].
    pub fn slots(&self) -> &[SlotInfo] {
        &self.slots
    }

    /// The names of all slots, in the order of [`slots`](Self::slots).
    pub fn slot_ids(&self) -> impl ExactSizeIterator<Item = Slot> + use<> {
        (0..self.slots.len()).map(Slot::from_index)
    }

    /// What is known of a slot.
    pub fn slot(&self, slot: Slot) -> &SlotInfo {
        &self.slots[slot.index()]
    }

    /// The slot that owns the memory of `slot`, and the element at which `slot` starts in it. A slot that is no view is
    /// its own root.
    pub fn root(&self, slot: Slot) -> (Slot, usize) {
        let info = &self.slots[slot.index()];
        match info.kind {
            SlotKind::View { of } => (of, info.offset),
            SlotKind::Constant | SlotKind::Input | SlotKind::Output | SlotKind::State | SlotKind::Temporary => {
                (slot, 0)
            }
        }
    }

    /// The chain that owns a slot: the only one, with the chains nested in it, whose steps can name it.
    pub fn owner(&self, slot: Slot) -> ChainId {
        self.owners[slot.index()]
    }

    /// Elements of a slot in a pass, saturating.
    pub fn elements(&self, slot: Slot, dims: &Dims) -> usize {
        self.slots[slot.index()].extent.elements(dims)
    }

    /// Bytes of a slot in a pass, saturating. For a constant, as its declared type.
    pub fn bytes(&self, slot: Slot, dims: &Dims) -> u64 {
        self.slots[slot.index()].bytes(dims)
    }

    /// Constants in the order they were declared.
    pub fn constants(&self) -> &[Slot] {
        &self.constants
    }

    /// Inputs in the order they were declared.
    pub fn inputs(&self) -> &[Slot] {
        &self.inputs
    }

    /// Outputs in the order they were marked; each may be a view of the slot of kind [`SlotKind::Output`].
    pub fn outputs(&self) -> &[Slot] {
        &self.outputs
    }

    /// State in the order it was declared.
    pub fn states(&self) -> &[Slot] {
        &self.states
    }

    /// The chain a pass runs.
    pub fn main(&self) -> &Chain {
        &self.chains[ChainId::MAIN.index()]
    }

    /// All chains, by [`ChainId::index`]; the main chain first.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The names of all chains, in the order of [`chains`](Self::chains).
    pub fn chain_ids(&self) -> impl ExactSizeIterator<Item = ChainId> + use<> {
        (0..self.chains.len()).map(ChainId::from_index)
    }

    /// One chain.
    pub fn chain(&self, chain: ChainId) -> &Chain {
        &self.chains[chain.index()]
    }

    /// The step that runs a nested chain; `None` for the main chain.
    pub fn parent(&self, chain: ChainId) -> Option<StepId> {
        let (parent, index) = self.chains[chain.index()].parent?;
        Some(self.chains[parent.index()].steps[index].id)
    }

    /// Roots to release once step `index` of `chain` has run: temporaries only, each in exactly one list, at its last
    /// use. After a step that runs nested chains, that includes what those chains named last.
    ///
    /// # Panics
    /// If the chain has no step `index`.
    pub fn release(&self, chain: ChainId, index: usize) -> &[Slot] {
        self.chains[chain.index()].release(index)
    }

    /// Number of steps in all chains.
    pub fn step_count(&self) -> usize {
        self.positions.len()
    }

    /// One step of any chain.
    pub fn step(&self, step: StepId) -> &Step {
        let (chain, index) = self.position(step);
        &self.chains[chain.index()].steps[index]
    }

    /// The chain of a step and its position there.
    pub fn position(&self, step: StepId) -> (ChainId, usize) {
        let (chain, index) = self.positions[step.index()];
        (chain, index as usize)
    }

    /// Text of a label, such as `layer 3/attention`; empty outside of any scope.
    pub fn label(&self, label: Label) -> &str {
        &self.labels[label.0 as usize]
    }
}
