//! Checks on operands, and how a fault spreads without being reported twice.

use super::ProgramBuilder;
use crate::error::At;
use crate::program::ChainId;
use crate::{BuildError, DType, Extent, Slot, SlotInfo, SlotKind};

/// Why no step was recorded.
#[derive(Debug)]
pub(super) enum Reject {
    Fault(Box<BuildError>),
    /// An operand stems from a fault that is reported already.
    Broken,
}

impl From<BuildError> for Reject {
    fn from(fault: BuildError) -> Self {
        Self::Fault(Box::new(fault))
    }
}

/// A slot that may be read now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    pub(super) slot: Slot,
    pub(super) root: Slot,
    pub(super) extent: Extent,
    pub(super) dtype: DType,
    pub(super) groups: usize,
}

impl Value {
    pub(super) fn width(&self) -> usize {
        self.extent.width()
    }

    pub(super) fn head_dim(&self) -> usize {
        self.width() / self.groups
    }
}

impl ProgramBuilder {
    pub(super) fn at(&self, op: &'static str) -> At {
        At { op, label: self.labels[self.label.0 as usize].clone() }
    }

    pub(super) fn name_of(&self, slot: Slot) -> String {
        self.slots[slot.index()].name.clone()
    }

    /// Reports a fault and gives the slot that stands for the result that was not made.
    pub(super) fn broken(&mut self, reject: Reject) -> Slot {
        if let Reject::Fault(fault) = reject {
            self.faults.push(*fault);
        }
        let owner = self.chain();
        let slot = self.temporary("fault", owner, Extent::Fixed(0), DType::F32, 1);
        self.meta[slot.index()].broken = true;
        slot
    }

    pub(super) fn settle(&mut self, made: Result<Slot, Reject>) -> Slot {
        made.unwrap_or_else(|reject| self.broken(reject))
    }

    /// A slot to be read: known, in scope, not overwritten.
    pub(super) fn operand(&self, op: &'static str, slot: Slot) -> Result<Value, Reject> {
        let Some(meta) = self.meta.get(slot.index()) else {
            let (index, slots) = (slot.index(), self.slots.len());
            return Err(BuildError::UnknownSlot { at: self.at(op), index, slots }.into());
        };
        if meta.broken {
            return Err(Reject::Broken);
        }
        if !self.stack.contains(&meta.owner) {
            return Err(BuildError::OutOfScope { at: self.at(op), slot: self.name_of(slot) }.into());
        }
        let info = &self.slots[slot.index()];
        let (root, _) = self.root(slot);
        let root_meta = &self.meta[root.index()];
        // State is a variable: its own slot reads what it holds now, only views of older contents are stale.
        if root_meta.overwrites != meta.version && info.kind != SlotKind::State {
            let overwritten_by = root_meta.overwritten_by;
            let slot = self.name_of(slot);
            return Err(BuildError::UsedAfterOverwrite { at: self.at(op), slot, overwritten_by }.into());
        }
        Ok(Value { slot, root, extent: info.extent, dtype: info.dtype, groups: info.groups })
    }

    pub(super) fn float(&self, op: &'static str, slot: Slot) -> Result<Value, Reject> {
        let value = self.operand(op, slot)?;
        if !value.dtype.is_float() {
            return Err(self.wrong_dtype(op, value, "a float type"));
        }
        Ok(value)
    }

    pub(super) fn of_dtype(&self, op: &'static str, slot: Slot, dtype: DType) -> Result<Value, Reject> {
        let value = self.operand(op, slot)?;
        if value.dtype != dtype {
            let expected = match dtype {
                DType::F32 => "F32",
                DType::F16 => "F16",
                DType::Bf16 => "Bf16",
                DType::U32 => "U32",
                DType::U8 => "U8",
            };
            return Err(self.wrong_dtype(op, value, expected));
        }
        Ok(value)
    }

    fn wrong_dtype(&self, op: &'static str, value: Value, expected: &'static str) -> Reject {
        let slot = self.name_of(value.slot);
        BuildError::DType { at: self.at(op), slot, expected, found: value.dtype }.into()
    }

    /// A constant and its shape, which must have `rank` axes; `expected` describes them.
    pub(super) fn weight(
        &self,
        op: &'static str,
        slot: Slot,
        rank: usize,
        expected: &str,
    ) -> Result<&SlotInfo, Reject> {
        self.operand(op, slot)?;
        let info = &self.slots[slot.index()];
        if info.kind != SlotKind::Constant {
            let (expected, found) = ("a constant", info.kind.name());
            return Err(BuildError::Kind { at: self.at(op), slot: info.name.clone(), expected, found }.into());
        }
        if info.shape.len() != rank {
            return Err(self.wrong_shape(op, info, expected.to_owned()));
        }
        Ok(info)
    }

    pub(super) fn vector(&self, op: &'static str, slot: Slot, len: usize) -> Result<(), Reject> {
        let info = self.weight(op, slot, 1, &format!("[{len}]"))?;
        if info.shape[0] != len {
            return Err(self.wrong_shape(op, info, format!("[{len}]")));
        }
        Ok(())
    }

    pub(super) fn wrong_shape(&self, op: &'static str, info: &SlotInfo, expected: String) -> Reject {
        let (slot, found) = (info.name.clone(), info.shape.clone());
        BuildError::Shape { at: self.at(op), slot, expected, found }.into()
    }

    pub(super) fn has_width(&self, op: &'static str, value: Value, expected: usize) -> Result<(), Reject> {
        if value.width() != expected {
            let (slot, found) = (self.name_of(value.slot), value.width());
            return Err(BuildError::Width { at: self.at(op), slot, expected, found }.into());
        }
        Ok(())
    }

    pub(super) fn has_extent(&self, op: &'static str, value: Value, expected: Extent) -> Result<(), Reject> {
        if value.extent != expected {
            let (slot, found) = (self.name_of(value.slot), value.extent);
            return Err(BuildError::Extent { at: self.at(op), slot, expected, found }.into());
        }
        Ok(())
    }

    /// `value` has the extent and type of `model`.
    pub(super) fn like(&self, op: &'static str, value: Value, model: Value) -> Result<(), Reject> {
        self.has_extent(op, value, model.extent)?;
        self.of_dtype(op, value.slot, model.dtype)?;
        Ok(())
    }

    pub(super) fn wrong_rows(&self, op: &'static str, value: Value, expected: &'static str) -> Reject {
        let (slot, found) = (self.name_of(value.slot), value.extent);
        BuildError::Rows { at: self.at(op), slot, expected, found }.into()
    }

    /// Whether a view reaches over all of its root's memory.
    pub(super) fn covers_root(&self, value: Value) -> bool {
        let (root, offset) = self.root(value.slot);
        let info = &self.slots[root.index()];
        offset == 0 && info.extent == value.extent && info.dtype == value.dtype
    }

    /// Whether the current chain may write `value`'s memory in place.
    pub(super) fn overwritable(&self, value: Value) -> bool {
        let chain = self.chain();
        let owned =
            self.slots[value.root.index()].kind == SlotKind::Temporary && self.meta[value.root.index()].owner == chain;
        (owned || self.chains[chain.index()].carries.contains(&value.root)) && self.covers_root(value)
    }

    /// Whether the current chain may write state as a carry: outside of any scan, or as a carry of the scan whose body
    /// this is. Elsewhere an earlier read in the body would see the write of the iteration before.
    pub(super) fn may_store(&self, state: Slot) -> bool {
        self.chains[self.chain().index()].carries.contains(&state)
            || !self.stack.iter().any(|chain| self.chains[chain.index()].is_body)
    }

    pub(super) fn not_overwritable(&self, op: &'static str, value: Value) -> Reject {
        let (slot, kind) = (self.name_of(value.slot), self.slots[value.root.index()].kind.name());
        BuildError::NotOverwritable { at: self.at(op), slot, kind }.into()
    }

    /// Declares everything read from `root` so far stale.
    pub(super) fn overwrite(&mut self, root: Slot, by: &'static str) {
        let meta = &mut self.meta[root.index()];
        meta.overwrites += 1;
        meta.overwritten_by = by;
    }

    /// A view of all of `value`'s memory as it is now.
    pub(super) fn alias(&mut self, value: Value, groups: usize, owner: ChainId) -> Slot {
        let (of, offset) = self.root(value.slot);
        let info = SlotInfo {
            name: self.name_of(value.slot),
            kind: SlotKind::View { of },
            extent: value.extent,
            dtype: value.dtype,
            groups,
            offset,
            shape: Vec::new(),
        };
        let version = self.meta[of.index()].overwrites;
        self.add_slot(info, owner, version)
    }
}
