//! Random programs, recorded twice: as a program, and as acts over immutable values that an eager evaluator runs.
//!
//! The eager values know no slots, views or overwriting, so they are what the program must compute.

mod eager;
mod nested;
mod operations;

pub(crate) use eager::{Act, EagerCondition, evaluate};
use plimsoll_program::{BuildError, DType, Extent, Program, ProgramBuilder, Slot};

use crate::interpret::Arith;

/// Decisions, one byte each; all zero once they are used up.
#[derive(Debug)]
pub(crate) struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn below(&mut self, n: usize) -> usize {
        let Some((&first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        first as usize % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}

/// A slot and its eager value.
#[derive(Debug, Clone, Copy)]
struct Handle {
    slot: Slot,
    value: usize,
    extent: Extent,
    groups: usize,
    /// Handles of one root lose their value together.
    root: usize,
    /// The chain that may overwrite it in place; `None` if none may.
    writable_in: Option<usize>,
    /// A carry that is state of the sequence.
    of_state: bool,
    gone: bool,
}

/// What was recorded.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) program: Result<Program, BuildError>,
    pub(crate) acts: Vec<Act>,
    pub(crate) value_count: usize,
    /// Slot and value of constants, inputs and state before the pass.
    pub(crate) given: Vec<(Slot, usize)>,
    /// Slot and value of outputs and state after the pass.
    pub(crate) expected: Vec<(Slot, usize)>,
}

const WIDTHS: [usize; 4] = [1, 2, 4, 6];
const DEPTH: usize = 3;

/// Records one program.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    b: ProgramBuilder,
    choices: Choices<'a>,
    handles: Vec<Handle>,
    weights: Vec<(Slot, usize, [usize; 2])>,
    vectors: Vec<(Slot, usize, usize)>,
    /// Weights of four experts.
    experts: Vec<(Slot, usize, [usize; 2])>,
    /// Convolution taps of 8 and of 12 elements.
    taps: Vec<(Slot, usize, usize)>,
    logit_rows: (Slot, usize),
    states: Vec<(Slot, usize)>,
    acts: Vec<Act>,
    values: usize,
    roots: usize,
    /// Chains being recorded.
    chain: Vec<usize>,
    chains: usize,
    scans: usize,
    outputs: Vec<(Slot, usize)>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn record(bytes: &'a [u8]) -> Recorded {
        let mut b = ProgramBuilder::new();
        let mut values = 0;
        let mut given = Vec::new();
        let mut fresh = |slot: Slot, given: &mut Vec<(Slot, usize)>| {
            given.push((slot, values));
            values += 1;
            values - 1
        };
        let mut weights = Vec::new();
        let mut vectors = Vec::new();
        let mut handles = Vec::new();
        let readable = |slot, value, extent| Handle {
            slot,
            value,
            extent,
            groups: 1,
            root: value,
            writable_in: None,
            of_state: false,
            gone: false,
        };
        for out_features in WIDTHS {
            for in_features in WIDTHS {
                let slot =
                    b.constant(format!("w.{out_features}.{in_features}"), &[out_features, in_features], DType::F32);
                weights.push((slot, fresh(slot, &mut given), [out_features, in_features]));
            }
            let slot = b.constant(format!("v.{out_features}"), &[out_features], DType::F32);
            let value = fresh(slot, &mut given);
            vectors.push((slot, value, out_features));
            handles.push(readable(slot, value, Extent::Fixed(out_features)));
        }
        let mut experts = Vec::new();
        for [out_features, in_features] in [[4, 4], [2, 6], [1, 2], [6, 1]] {
            let name = format!("e.{out_features}.{in_features}");
            let slot = b.constant(name, &[4, out_features, in_features], DType::F32);
            experts.push((slot, fresh(slot, &mut given), [out_features, in_features]));
        }
        let mut taps = Vec::new();
        for elements in [6, 8, 12] {
            let slot = b.constant(format!("t.{elements}"), &[elements], DType::F32);
            taps.push((slot, fresh(slot, &mut given), elements));
        }
        for (name, extent) in [("a", Extent::PerRow(4)), ("b", Extent::PerRow(6)), ("c", Extent::Fixed(6))] {
            let slot = b.input(name, extent, DType::F32);
            let value = fresh(slot, &mut given);
            handles.push(readable(slot, value, extent));
        }
        let slot = b.input("logit_rows", Extent::PerLogitRow(1), DType::U32);
        let logit_rows = (slot, fresh(slot, &mut given));
        let mut states = Vec::new();
        for (name, width) in [("s4", 4), ("s6", 6)] {
            let slot = b.state(name, Extent::Fixed(width), DType::F32);
            let value = fresh(slot, &mut given);
            states.push((slot, handles.len()));
            handles.push(readable(slot, value, Extent::Fixed(width)));
        }
        let choices = Choices::new(bytes);
        let mut recorder = Self {
            b,
            choices,
            handles,
            weights,
            vectors,
            experts,
            taps,
            logit_rows,
            states,
            acts: Vec::new(),
            values,
            roots: values,
            chain: vec![0],
            chains: 1,
            scans: 0,
            outputs: Vec::new(),
        };
        while !recorder.choices.bytes.is_empty() {
            recorder.act();
        }
        recorder.output();
        let mut expected = recorder.outputs;
        for &(slot, handle) in &recorder.states {
            expected.push((slot, recorder.handles[handle].value));
        }
        let (program, acts, value_count) = (recorder.b.build(), recorder.acts, recorder.values);
        Recorded { program, acts, value_count, given, expected }
    }

    fn value(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    fn here(&self) -> usize {
        self.chain[self.chain.len() - 1]
    }

    fn find(&mut self, wanted: impl Fn(&Handle) -> bool) -> Option<usize> {
        let found: Vec<usize> =
            (0..self.handles.len()).filter(|&i| !self.handles[i].gone && wanted(&self.handles[i])).collect();
        // The latest handles first, so that values chain up.
        let recent: Vec<usize> = found.into_iter().rev().take(6).collect();
        self.choices.pick(&recent)
    }

    fn lose_root(&mut self, root: usize) {
        for handle in &mut self.handles {
            handle.gone |= handle.root == root;
        }
    }

    fn add_fresh(&mut self, slot: Slot, value: usize, extent: Extent, groups: usize) {
        self.roots += 1;
        let (root, writable_in) = (self.roots, Some(self.here()));
        self.handles.push(Handle { slot, value, extent, groups, root, writable_in, of_state: false, gone: false });
    }

    fn apply(&mut self, arith: Arith, args: &[usize]) -> usize {
        let out = self.value();
        self.acts.push(Act::Apply { arith, args: args.to_vec(), out });
        out
    }

    /// Records one operation like its first operand, in place if that is asked for and allowed.
    fn like(
        &mut self,
        x: usize,
        others: &[usize],
        arith: Arith,
        record: impl FnOnce(&mut ProgramBuilder, Slot, bool) -> Slot,
    ) {
        let handle = self.handles[x];
        let shares = others.iter().any(|&other| self.handles[other].root == handle.root);
        let in_place = handle.writable_in == Some(self.here()) && !shares && self.choices.below(2) == 0;
        let args: Vec<usize> = [x].iter().chain(others).map(|&i| self.handles[i].value).collect();
        let value = self.apply(arith, &args);
        let slot = record(&mut self.b, handle.slot, in_place);
        if in_place {
            self.lose_root(handle.root);
            self.handles.push(Handle { slot, value, ..handle });
        } else {
            self.add_fresh(slot, value, handle.extent, handle.groups);
        }
    }

    fn act(&mut self) {
        let nested = self.chain.len() <= DEPTH;
        match self.choices.below(if nested { 23 } else { 19 }) {
            0 => self.unary(),
            1 | 2 => self.binary(),
            3 => self.scale(),
            4 | 5 => self.linear(),
            6 => self.rms_norm(),
            7 => self.glu(),
            8 => self.regroup(),
            9 => self.slice(),
            10 => self.select_or_sum(),
            11 => self.fill(),
            12 => self.store(),
            13 => self.output(),
            14 => self.route(),
            15 => self.scale_rows(),
            16 => self.columns(),
            17 => self.conv(),
            18 => self.delta(),
            19 | 20 => self.branch(),
            _ => self.scan(),
        }
    }
}
