//! Divergence of a trained model's logits from the f32 reference, from the summary that `tests/golden/*-kl*/` keeps of each row.

use crate::{
    compare::{argmax, hash_row, hex, ln_softmax},
    golden::{Tensors, info},
    pass::{chunks, feed, new_sequence},
};
use anyhow::{Result, ensure};
use plimsoll_models::{CpuExecutor, CpuSettings, LogitRows, Model};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Rows of a pass.
const PASS: usize = 128;

/// Bounds of a case, nats.
#[derive(Debug, Clone, Copy, Deserialize)]
#[expect(missing_docs, reason = "named as in case.json, described in its README")]
pub struct Bounds {
    pub mean_kl: f64,
    pub mean_kl_aim: f64,
    pub same_top_token: f64,
}

/// A case: contexts of which the last rows are compared.
#[derive(Debug)]
pub struct KlCase {
    /// What it is held to.
    pub bounds: Bounds,
    /// Token ids of each context.
    pub contexts: Vec<Vec<u32>>,
    /// Rows of each context, counted from its end, that the reference has.
    pub rows: usize,
    top_ids: Vec<u32>,
    top_logp: Vec<f32>,
    rest_ids: Vec<u32>,
    rest_logp: Vec<f32>,
    rest_mass: Vec<f32>,
}

/// How far a model is from a case's reference.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// Rows compared.
    pub rows: usize,
    /// Estimate of the mean over the rows of `KL(reference || ours)`, nats.
    pub mean_kl: f64,
    /// The largest row's estimate, nats.
    pub worst_kl: f64,
    /// Share of rows with the reference's likeliest token.
    pub same_top_token: f64,
    /// SHA-256 of the logits of all these rows.
    pub sha256: String,
}

/// The reference's distribution of one row: its likeliest tokens, and a sample of the others.
struct Row<'a> {
    top: (&'a [u32], &'a [f32]),
    rest: (&'a [u32], &'a [f32]),
    rest_mass: f32,
}

impl Row<'_> {
    /// An unbiased estimate of `KL(reference || ours)` in nats (J. Schulman 2020, estimator k3).
    fn kl_estimate(&self, ln_q: &[f64]) -> f64 {
        let g = |(&id, &ln_p): (&u32, &f32)| {
            let r = ln_q[id as usize] - f64::from(ln_p);
            r.exp_m1() - r
        };
        let top = self.top.0.iter().zip(self.top.1).map(|pair| f64::from(*pair.1).exp() * g(pair));
        let rest = self.rest.0.iter().zip(self.rest.1).map(g).sum::<f64>() / self.rest.0.len() as f64;
        top.sum::<f64>() + f64::from(self.rest_mass) * rest
    }

    fn likeliest(&self) -> u32 {
        self.top.0[argmax(self.top.1) as usize]
    }
}

impl KlCase {
    /// Reads a case.
    ///
    /// # Errors
    /// If a file is missing, or its tensors do not fit each other.
    pub fn load(name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Info {
            checks: Bounds,
        }
        let Info { checks: bounds } = info(name)?;
        let tensors = Tensors::open(name, "reference.safetensors")?;
        let (shape, kept) = (tensors.shape("ids")?, tensors.shape("top_ids")?);
        ensure!(shape.len() == 2 && kept.len() == 3 && shape[0] == kept[0], "{name}: shapes {shape:?} and {kept:?}");
        ensure!(kept[1] > 0 && kept[1] <= shape[1], "{name}: {} rows of {}", kept[1], shape[1]);
        let case = Self {
            bounds,
            contexts: tensors.ids("ids")?.chunks_exact(shape[1]).map(<[u32]>::to_vec).collect(),
            rows: kept[1],
            top_ids: tensors.ids("top_ids")?,
            top_logp: tensors.f32s("top_logp")?,
            rest_ids: tensors.ids("rest_ids")?,
            rest_logp: tensors.f32s("rest_logp")?,
            rest_mass: tensors.f32s("rest_mass")?,
        };
        ensure!(case.rest_mass.len() == shape[0] * kept[1], "{name}: {} rows", case.rest_mass.len());
        Ok(case)
    }

    fn row(&self, row: usize) -> Row<'_> {
        let (top, rest) = (self.top_ids.len() / self.rest_mass.len(), self.rest_ids.len() / self.rest_mass.len());
        Row {
            top: (&self.top_ids[row * top..][..top], &self.top_logp[row * top..][..top]),
            rest: (&self.rest_ids[row * rest..][..rest], &self.rest_logp[row * rest..][..rest]),
            rest_mass: self.rest_mass[row],
        }
    }

    /// Runs every context through the CPU executor and compares the rows that the reference has.
    ///
    /// # Errors
    /// Those of the executor.
    pub fn measure(&self, model: &Arc<Model>, settings: CpuSettings) -> Result<Divergence> {
        let (mut estimates, mut same, mut hash) = (Vec::new(), 0, Sha256::new());
        for (index, ids) in self.contexts.iter().enumerate() {
            last_logits(model, settings, ids, self.rows, |row, logits| {
                let reference = self.row(index * self.rows + row);
                hash.update(hash_row(logits));
                estimates.push(reference.kl_estimate(&ln_softmax(logits)));
                same += usize::from(argmax(logits) == reference.likeliest());
            })?;
        }
        let rows = estimates.len();
        ensure!(rows == self.rest_mass.len(), "{rows} rows were compared, the reference has {}", self.rest_mass.len());
        Ok(Divergence {
            rows,
            mean_kl: estimates.iter().sum::<f64>() / rows as f64,
            worst_kl: estimates.iter().copied().fold(0.0, f64::max),
            same_top_token: same as f64 / rows as f64,
            sha256: hex(&hash.finalize()),
        })
    }
}

/// Runs `ids` on a fresh sequence; `sink` gets the logits of each of the last `rows` rows, counted from the first of them.
///
/// # Errors
/// Those of the executor.
pub fn last_logits(
    model: &Arc<Model>,
    settings: CpuSettings,
    ids: &[u32],
    rows: usize,
    mut sink: impl FnMut(usize, &[f32]),
) -> Result<()> {
    ensure!(rows <= ids.len(), "{rows} rows of {} tokens", ids.len());
    let mut executor = CpuExecutor::new(Arc::clone(model), settings)?;
    let mut sequence = new_sequence(model, settings.kv_dtype, ids.len())?;
    let vocab_size = model.architecture().dimensions.vocab_size;
    let (before, compared) = ids.split_at(ids.len() - rows);
    let parts = chunks(before.len(), PASS);
    feed(&mut executor, &mut sequence, before, &parts, LogitRows::Last, &mut (), |_, _| ())?;
    let parts = chunks(compared.len(), PASS);
    feed(&mut executor, &mut sequence, compared, &parts, LogitRows::All, &mut (), |range, logits| {
        for (row, logits) in range.zip(logits.chunks_exact(vocab_size)) {
            sink(row, logits);
        }
    })
}
