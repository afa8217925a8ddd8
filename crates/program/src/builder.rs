//! Records a program from code that reads like an eager model.

mod check;
mod experts;
mod inplace;
mod nested;
mod ops;
mod recurrent;

use std::collections::{HashMap, HashSet};

pub use nested::ScanValues;
pub use recurrent::DeltaOperands;

use crate::liveness;
use crate::program::{Chain, ChainId, Label, Program, Step, StepId};
use crate::{BuildError, DType, Extent, Op, Slot, SlotInfo, SlotKind};

/// What the builder knows of a slot besides its [`SlotInfo`].
#[derive(Debug, Clone, Copy)]
struct Meta {
    /// Chain in which the slot may be named, with the chains nested in it.
    owner: ChainId,
    /// How often the root had been overwritten when the slot was made. Older means stale.
    version: u32,
    /// For a root: how often it has been overwritten, and by what at last.
    overwrites: u32,
    overwritten_by: &'static str,
    /// A fault was reported where this slot should have been made: its users report nothing more.
    broken: bool,
}

/// A chain while it is recorded.
#[derive(Debug)]
struct Draft {
    parent: Option<(ChainId, usize)>,
    steps: Vec<(Op, Label)>,
    /// Roots a scan body may overwrite although it does not own them.
    carries: Vec<Slot>,
    /// Whether the chain runs once for each row.
    is_body: bool,
}

/// Records steps; every method that computes something appends one step and returns the slot of its result.
///
/// Nothing is computed and no method fails: faults are collected and [`build`](Self::build) returns them. Row-wise
/// operations take any [`Extent`], a `Fixed` slot being one row, so that the same code records the body of a scan.
///
/// The `_assign` forms put the result in the memory of their first operand and return a view of it; that operand and
/// older views of it must not be used any more.
#[derive(Debug)]
pub struct ProgramBuilder {
    slots: Vec<SlotInfo>,
    meta: Vec<Meta>,
    chains: Vec<Draft>,
    /// Chains being recorded, innermost last; never empty.
    stack: Vec<ChainId>,
    scopes: Vec<String>,
    layer: Option<usize>,
    labels: Vec<String>,
    label_numbers: HashMap<String, Label>,
    label: Label,
    names: HashSet<String>,
    outputs: Vec<Slot>,
    faults: Vec<BuildError>,
}

impl Default for ProgramBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ProgramBuilder {
    /// An empty program.
    pub fn new() -> Self {
        let main = Draft { parent: None, steps: Vec::new(), carries: Vec::new(), is_body: false };
        Self {
            slots: Vec::new(),
            meta: Vec::new(),
            chains: vec![main],
            stack: vec![ChainId::MAIN],
            scopes: Vec::new(),
            layer: None,
            labels: vec![String::new()],
            label_numbers: HashMap::from([(String::new(), Label(0))]),
            label: Label(0),
            names: HashSet::new(),
            outputs: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Declares a weight or table of the model, `shape` outermost axis first.
    pub fn constant(&mut self, name: impl Into<String>, shape: &[usize], dtype: DType) -> Slot {
        let elements = shape.iter().fold(1usize, |product, &axis| product.saturating_mul(axis));
        let slot = self.declare("constant", name.into(), SlotKind::Constant, Extent::Fixed(elements), dtype);
        self.slots[slot.index()].shape = shape.to_vec();
        slot
    }

    /// Declares a value the caller gives before each pass.
    pub fn input(&mut self, name: impl Into<String>, extent: Extent, dtype: DType) -> Slot {
        self.declare("input", name.into(), SlotKind::Input, extent, dtype)
    }

    /// Declares a value that belongs to the sequence and lives across passes. Where the sequence alone knows its size,
    /// as for KV, the extent is `Fixed(0)`.
    pub fn state(&mut self, name: impl Into<String>, extent: Extent, dtype: DType) -> Slot {
        self.declare("state", name.into(), SlotKind::State, extent, dtype)
    }

    /// Makes a temporary of the main chain, or a view of one, a result of the program: it stays to the end of the pass
    /// and cannot be overwritten any more. Not inside a branch or scan body. Returns `x`.
    pub fn mark_output(&mut self, x: Slot) -> Slot {
        let checked = self.operand("mark_output", x).and_then(|value| {
            let kind = self.slots[value.root.index()].kind;
            if self.chain() != ChainId::MAIN || !matches!(kind, SlotKind::Temporary | SlotKind::Output) {
                let slot = self.name_of(x);
                let expected = "a temporary, marked in the main chain";
                let found = kind.name();
                return Err(BuildError::Kind { at: self.at("mark_output"), slot, expected, found }.into());
            }
            Ok(value)
        });
        match checked {
            Ok(value) => {
                self.slots[value.root.index()].kind = SlotKind::Output;
                if !self.outputs.contains(&x) {
                    self.outputs.push(x);
                }
                x
            }
            Err(reject) => self.broken(reject),
        }
    }

    /// Gives a computed value a name for messages, plans and traces. Returns `x`.
    pub fn named(&mut self, x: Slot, name: impl Into<String>) -> Slot {
        if let Some(info) = self.slots.get_mut(x.index())
            && !matches!(info.kind, SlotKind::Constant | SlotKind::Input | SlotKind::State)
        {
            info.name = name.into();
        }
        x
    }

    /// Records `body` under a label; labels of nested scopes are joined by `/`.
    pub fn scope<R>(&mut self, label: impl Into<String>, body: impl FnOnce(&mut Self) -> R) -> R {
        self.scopes.push(label.into());
        self.relabel();
        let result = body(self);
        self.scopes.pop();
        self.relabel();
        result
    }

    /// Labels the steps that follow `layer <n>`, in front of any scope, until the next call.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
        self.relabel();
    }

    /// What is known of a slot so far, as model code may need it for widths; `None` for a slot of another builder.
    pub fn info(&self, slot: Slot) -> Option<&SlotInfo> {
        self.slots.get(slot.index())
    }

    /// Ends the recording: checks, liveness and release lists are made here, once.
    ///
    /// # Errors
    /// The one fault that was met, or [`BuildError::Several`] with all of them in order.
    pub fn build(mut self) -> Result<Program, BuildError> {
        match self.faults.len() {
            0 => {}
            1 => return Err(self.faults.remove(0)),
            _ => return Err(BuildError::Several { faults: self.faults }),
        }
        self.flatten_views();
        let owners: Vec<ChainId> = self.meta.iter().map(|meta| meta.owner).collect();
        let mut positions = Vec::new();
        let mut chains = Vec::with_capacity(self.chains.len());
        for (chain, draft) in self.chains.into_iter().enumerate() {
            let chain = ChainId::from_index(chain);
            let mut steps = Vec::with_capacity(draft.steps.len());
            for (op, label) in draft.steps {
                let id = StepId::from_index(positions.len());
                positions.push((chain, StepId::from_index(steps.len()).0));
                steps.push(Step { id, op, label });
            }
            chains.push(Chain { steps, parent: draft.parent, released: Vec::new(), release_starts: Vec::new() });
        }
        let schedule = liveness::analyze(&self.slots, &owners, &mut chains);
        let of_kind = |kind: SlotKind| {
            let slots = self.slots.iter().enumerate().filter(|(_, info)| info.kind == kind);
            slots.map(|(index, _)| Slot::from_index(index)).collect()
        };
        Ok(Program {
            constants: of_kind(SlotKind::Constant),
            inputs: of_kind(SlotKind::Input),
            states: of_kind(SlotKind::State),
            outputs: self.outputs,
            owners,
            chains,
            positions,
            labels: self.labels,
            schedule,
            slots: self.slots,
        })
    }

    /// Makes every view point at its root.
    fn flatten_views(&mut self) {
        for index in 0..self.slots.len() {
            let (root, offset) = self.root(Slot::from_index(index));
            if root.index() != index {
                self.slots[index].kind = SlotKind::View { of: root };
                self.slots[index].offset = offset;
            }
        }
    }

    /// The slot that owns the memory of `slot`, and where `slot` starts in it.
    fn root(&self, mut slot: Slot) -> (Slot, usize) {
        let mut offset = 0;
        while let SlotKind::View { of } = self.slots[slot.index()].kind {
            offset += self.slots[slot.index()].offset;
            slot = of;
        }
        (slot, offset)
    }

    fn chain(&self) -> ChainId {
        *self.stack.last().expect("the main chain never leaves the stack")
    }

    fn push(&mut self, op: Op) {
        let chain = self.chain();
        self.chains[chain.index()].steps.push((op, self.label));
    }

    fn add_slot(&mut self, info: SlotInfo, owner: ChainId, version: u32) -> Slot {
        let slot = Slot::from_index(self.slots.len());
        self.slots.push(info);
        self.meta.push(Meta { owner, version, overwrites: 0, overwritten_by: "", broken: false });
        slot
    }

    fn declare(&mut self, op: &'static str, name: String, kind: SlotKind, extent: Extent, dtype: DType) -> Slot {
        if !self.names.insert(name.clone()) {
            let at = self.at(op);
            self.faults.push(BuildError::DuplicateName { at, name: name.clone() });
        }
        let info = SlotInfo { name, kind, extent, dtype, groups: 1, offset: 0, shape: Vec::new() };
        self.add_slot(info, ChainId::MAIN, 0)
    }

    /// A fresh temporary of `owner`.
    fn temporary(&mut self, op: &'static str, owner: ChainId, extent: Extent, dtype: DType, groups: usize) -> Slot {
        let name = format!("{op}.{}", self.slots.len());
        let kind = SlotKind::Temporary;
        self.add_slot(SlotInfo { name, kind, extent, dtype, groups, offset: 0, shape: Vec::new() }, owner, 0)
    }

    fn relabel(&mut self) {
        let mut text = self.layer.map(|layer| format!("layer {layer}")).unwrap_or_default();
        for scope in &self.scopes {
            if !text.is_empty() {
                text.push('/');
            }
            text.push_str(scope);
        }
        let next = Label(u32::try_from(self.labels.len()).expect("a program has fewer than 2^32 labels"));
        self.label = *self.label_numbers.entry(text).or_insert_with_key(|text| {
            self.labels.push(text.clone());
            next
        });
    }
}
