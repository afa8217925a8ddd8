//! Declares the constants of an architecture once for every kind of source.

use super::{
    CheckpointRef,
    names::Names,
    source::{Map, Part, Rows, Source},
};
use crate::{
    error::ModelError,
    layers::{mlp::LinearWeights, rope::RopeFrequencies},
};
use plimsoll_program::{DType, ProgramBuilder, Slot};
use std::collections::HashMap;

/// How a source names and arranges weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// As llama.cpp's converter writes them.
    Gguf,
    /// As `transformers` writes them.
    HuggingFace,
}

/// Whether a linear weight has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    No,
    Yes,
    /// If the source has such a tensor: GGUF has no key that says so.
    IfPresent,
}

impl Bias {
    /// For a setting of `config.json`.
    pub(crate) fn stated(flag: bool) -> Self {
        if flag { Self::Yes } else { Self::No }
    }
}

/// Where every constant of a program comes from, filled in while the program is recorded.
#[derive(Debug)]
pub(crate) struct Weights<'c> {
    checkpoint: CheckpointRef<'c>,
    names: Option<Names>,
    norm_map: Map,
    sources: HashMap<Slot, Source>,
    computed: Vec<(Slot, Vec<f32>)>,
    used: Vec<String>,
    ignored: Vec<&'static str>,
}

/// What recording has found: see [`Weights`].
#[derive(Debug)]
pub(crate) struct Sources {
    /// By constant slot, but for those that are computed.
    pub(crate) of: HashMap<Slot, Source>,
    /// Tensors that were read while recording.
    pub(crate) used: Vec<String>,
    /// Beginnings of names of tensors that belong to no text model.
    pub(crate) ignored: Vec<&'static str>,
}

impl<'c> Weights<'c> {
    /// For a GGUF file.
    pub(crate) fn of_gguf(checkpoint: impl Into<CheckpointRef<'c>>) -> Self {
        Self::new(checkpoint.into(), None)
    }

    /// For a folder. `overrides`: the architecture's own words, see [`Names`].
    pub(crate) fn of_folder(
        checkpoint: impl Into<CheckpointRef<'c>>,
        overrides: &'static [(&'static str, &'static str)],
    ) -> Self {
        let checkpoint = checkpoint.into();
        let names = Names::found(|name| checkpoint.find_tensor(name).is_some(), overrides);
        Self::new(checkpoint, Some(names))
    }

    fn new(checkpoint: CheckpointRef<'c>, names: Option<Names>) -> Self {
        Self {
            checkpoint,
            names,
            norm_map: Map::Same,
            sources: HashMap::new(),
            computed: Vec::new(),
            used: Vec::new(),
            ignored: Vec::new(),
        }
    }

    /// Norm weights of a folder are stored as their distance from one; GGUF files have the one added already.
    pub(crate) fn with_norms_from_one(mut self) -> Self {
        if self.dialect() == Dialect::HuggingFace {
            self.norm_map = Map::AddOne;
        }
        self
    }

    /// Lets tensors whose names begin so be in the source without being read, because they belong to no text model.
    pub(crate) fn ignore(&mut self, prefixes: &[&'static str]) {
        self.ignored.extend_from_slice(prefixes);
    }

    pub(crate) fn dialect(&self) -> Dialect {
        if self.names.is_some() { Dialect::HuggingFace } else { Dialect::Gguf }
    }

    pub(crate) fn checkpoint(&self) -> CheckpointRef<'c> {
        self.checkpoint
    }

    /// The name in the source of a constant by its GGUF name.
    pub(crate) fn stored_name(&self, canonical: &str) -> String {
        self.names.as_ref().map_or_else(|| canonical.to_owned(), |names| names.of(canonical))
    }

    /// Whether the source has the tensor of a constant.
    pub(crate) fn has(&self, canonical: &str) -> bool {
        self.checkpoint.find_tensor(&self.stored_name(canonical)).is_some()
    }

    /// Counts a tensor as read that no constant stands for, by its name in the source.
    pub(crate) fn mark_used(&mut self, name: impl Into<String>) {
        self.used.push(name.into());
    }

    /// Declares a constant with a source of the architecture's own making. `canonical` is its name in the program.
    pub(crate) fn declare(&mut self, b: &mut ProgramBuilder, canonical: &str, shape: &[usize], source: Source) -> Slot {
        let slot = b.constant(canonical, shape, DType::F32);
        self.sources.insert(slot, source);
        slot
    }

    /// A constant that is a whole tensor: `[out_features, in_features]`, or one axis.
    pub(crate) fn whole(&mut self, b: &mut ProgramBuilder, canonical: &str, shape: &[usize]) -> Slot {
        let source = Source::whole(self.stored_name(canonical), shape);
        self.declare(b, canonical, shape, source)
    }

    /// A matrix that stays as it is stored although others are quantized: a router.
    pub(crate) fn kept_matrix(&mut self, b: &mut ProgramBuilder, canonical: &str, shape: [usize; 2]) -> Slot {
        let source = Source::whole(self.stored_name(canonical), &shape).kept();
        self.declare(b, canonical, &shape, source)
    }

    /// The weight of an RMS norm, `[width]`; see [`with_norms_from_one`](Self::with_norms_from_one).
    pub(crate) fn norm(&mut self, b: &mut ProgramBuilder, canonical: &str, width: usize) -> Slot {
        let source = Source::whole(self.stored_name(canonical), &[width]).with_map(self.norm_map);
        self.declare(b, canonical, &[width], source)
    }

    /// `<stem>.weight` of `[out_features, in_features]`, with `<stem>.bias` if there is one.
    pub(crate) fn linear(
        &mut self,
        b: &mut ProgramBuilder,
        stem: &str,
        [out_features, in_features]: [usize; 2],
        bias: Bias,
    ) -> LinearWeights {
        let weight = self.whole(b, &format!("{stem}.weight"), &[out_features, in_features]);
        let name = format!("{stem}.bias");
        let has_bias = match bias {
            Bias::No => false,
            Bias::Yes => true,
            Bias::IfPresent => self.has(&name),
        };
        LinearWeights { weight, bias: has_bias.then(|| self.whole(b, &name, &[out_features])) }
    }

    /// As [`linear`](Self::linear) of rows of a tensor that a folder keeps in one piece with others: `stored` is its name there without
    /// `.weight`, `stored_rows` its rows, `rows` those of this constant. In a GGUF file the tensor has this name below `blk.<layer>.` too.
    pub(crate) fn linear_rows(
        &mut self,
        b: &mut ProgramBuilder,
        stem: &str,
        [out_features, in_features]: [usize; 2],
        (stored, stored_rows, rows): (&str, usize, Rows),
        bias: Bias,
    ) -> LinearWeights {
        let part =
            |end: &str, shape: Vec<usize>| Source::of(vec![Part { tensor: format!("{stored}.{end}"), shape, rows }]);
        let source = part("weight", vec![stored_rows, in_features]);
        let weight = self.declare(b, &format!("{stem}.weight"), &[out_features, in_features], source);
        let has_bias = match bias {
            Bias::No => false,
            Bias::Yes => true,
            Bias::IfPresent => self.checkpoint.find_tensor(&format!("{stored}.bias")).is_some(),
        };
        let bias = has_bias.then(|| {
            let source = part("bias", vec![stored_rows]);
            self.declare(b, &format!("{stem}.bias"), &[out_features], source)
        });
        LinearWeights { weight, bias }
    }

    /// The matrices of all experts as one constant `[experts, out_features, in_features]`, by the name of GGUF
    /// (`blk.0.ffn_gate_exps.weight`, one tensor of three axes). A folder has them one by one, or in one tensor: `experts.down_proj`, and
    /// `experts.gate_up_proj` with the rows of the gate before those of the up projection.
    pub(crate) fn experts(&mut self, b: &mut ProgramBuilder, canonical: &str, shape: [usize; 3]) -> Slot {
        let [experts, out_features, in_features] = shape;
        let name = self.stored_name(canonical);
        let Some((before, after)) = name.split_once("{e}.") else {
            return self.declare(b, canonical, &shape, Source::whole(name, &shape));
        };
        let role = after.strip_suffix(".weight").unwrap_or(after);
        let (fused, rows) = match role {
            "gate_proj" => ("gate_up_proj", Rows::Groups { group_rows: 2 * out_features, start: 0, len: out_features }),
            "up_proj" => {
                ("gate_up_proj", Rows::Groups { group_rows: 2 * out_features, start: out_features, len: out_features })
            }
            other => (other, Rows::All),
        };
        let fused = format!("{before}{fused}");
        // Either way has the same values; an outline takes the one that is a single name.
        let source = if self.checkpoint.find_tensor(&fused).is_some() || self.checkpoint.is_outline() {
            let stored_rows = if rows == Rows::All { out_features } else { 2 * out_features };
            Source::of(vec![Part { tensor: fused, shape: vec![experts, stored_rows, in_features], rows }])
        } else {
            let part = |expert| Part {
                tensor: format!("{before}{expert}.{after}"),
                shape: vec![out_features, in_features],
                rows: Rows::All,
            };
            Source::of((0..experts).map(part).collect())
        };
        self.declare(b, canonical, &shape, source)
    }

    /// A constant of one axis that is computed here.
    pub(crate) fn computed(&mut self, b: &mut ProgramBuilder, name: &str, values: Vec<f32>) -> Slot {
        let slot = b.constant(name, &[values.len()], DType::F32);
        self.computed.push((slot, values));
        slot
    }

    /// Records the table of cosines and sines for these frequencies: `[rows, rotary_dim]`.
    pub(crate) fn rope_table(
        &mut self,
        b: &mut ProgramBuilder,
        name: &str,
        positions: Slot,
        frequencies: RopeFrequencies,
    ) -> Slot {
        let inv_freq = self.computed(b, name, frequencies.inv_freq);
        b.rope_table(positions, inv_freq, frequencies.attention_factor)
    }

    /// The matrix of the output head: the embedding table itself if `tied`.
    ///
    /// # Errors
    /// [`ModelError::TiedHeadDiffers`] if the source has both and they are not the same.
    pub(crate) fn head(
        &mut self,
        b: &mut ProgramBuilder,
        embedding: Slot,
        tied: bool,
        shape: [usize; 2],
    ) -> Result<Slot, ModelError> {
        if !tied {
            return Ok(self.whole(b, "output.weight", &shape));
        }
        let (head, table) = (self.stored_name("output.weight"), self.stored_name("token_embd.weight"));
        if let (Some(own), Some(shared)) = (self.checkpoint.find_tensor(&head), self.checkpoint.find_tensor(&table)) {
            let same = own.stored_type == shared.stored_type && own.data == shared.data;
            self.checkpoint.advise_done(&own);
            self.checkpoint.advise_done(&shared);
            if !same {
                return Err(ModelError::TiedHeadDiffers { head, table });
            }
            self.mark_used(head);
        }
        Ok(embedding)
    }

    /// The record, and the values of the constants that are computed instead of read.
    pub(crate) fn finish(self) -> (Sources, Vec<(Slot, Vec<f32>)>) {
        (Sources { of: self.sources, used: self.used, ignored: self.ignored }, self.computed)
    }
}

#[cfg(test)]
mod tests;
