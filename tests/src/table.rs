//! The table of golden checks: every tiny case in every form, and the divergence of trained models.

use crate::{
    compare::{hash_row, hex, max_abs_diff},
    cpu_path::{CpuPath, Pace},
    golden::{Form, Tiny, case_names},
    kl::KlCase,
    model,
    pass::{chunks, cpu_session, cpu_session_with, extend_all, greedy},
};
use anyhow::{Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuSettings, Model};
use sha2::{Digest, Sha256};
use std::{fmt::Write as _, path::Path, sync::Arc};

/// Rows of a pass of the run that is compared with the reference.
const PASS: usize = 48;
/// Chunks that the prompt is cut into, beside two parts at each row that the case keeps.
const CHUNKS: [usize; 6] = [1, 7, 63, 64, 65, 100];
const THREADS: usize = 2;

/// What the checks of one form of one case, with one type of keys and values, gave.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Type of keys and values.
    pub kv: KvDtype,
    /// Whether products of weights are in f32.
    pub exact: bool,
    /// Largest difference of a kept logit, of the reference's range; and the bound.
    pub diff: (f32, f32),
    /// Greedy tokens equal from the first on, and those that count.
    pub greedy: (usize, usize),
    /// Ways of cutting the prompt that gave each row the same bits, and all that were tried.
    pub cuts: (usize, usize),
    /// Ways of running on this CPU that gave the same hash, and all that were tried.
    pub paths: (usize, usize),
    /// SHA-256 of every row's logits and of the greedy tokens.
    pub sha256: String,
}

impl Measured {
    /// Whether each check holds.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.diff.0 <= self.diff.1
            && self.greedy.0 >= self.greedy.1
            && self.cuts.0 == self.cuts.1
            && self.paths.0 == self.paths.1
    }
}

/// Whether all products of the model are in f32.
fn multiplies_in_f32(model: &Model) -> bool {
    let program = &model.architecture().program;
    program.constants().iter().all(|&slot| !model.weight_types().of(slot).multiplies_in_bf16())
}

/// Checks one form of a case.
///
/// # Errors
/// If the model cannot be loaded or run.
pub fn measure(case: &Tiny, form: Form) -> Result<Vec<Measured>> {
    let model = model::load(&case.path(form))?;
    let exact = multiplies_in_f32(&model);
    let kinds: &[KvDtype] = if exact { &[KvDtype::F32] } else { &[KvDtype::Bf16, KvDtype::F32] };
    kinds.iter().map(|&kv| measure_with(case, &model, exact, kv)).collect()
}

fn measure_with(case: &Tiny, model: &Arc<Model>, exact: bool, kv: KvDtype) -> Result<Measured> {
    let (rows, checks) = (case.ids.len(), &case.checks);
    let mut session = cpu_session(model, THREADS, kv, rows + case.greedy.len())?;
    let logits = extend_all(&mut session, &case.ids, &chunks(rows, PASS))?;
    let width = logits.len() / rows;
    let row = |row: usize| &logits[row * width..][..width];
    let kept: Vec<f32> = case.rows.iter().flat_map(|&index| row(index)).copied().collect();
    ensure!(kept.len() == case.logits.len(), "{} logits, {} kept", kept.len(), case.logits.len());
    let tokens = greedy(&mut session, row(rows - 1), checks.greedy_steps)?;
    let same = tokens.iter().zip(&case.greedy).take_while(|(ours, theirs)| ours == theirs).count();
    let bound = checks.max_diff_of_range_f32.filter(|_| exact).unwrap_or(checks.max_diff_of_range);
    let parts = CHUNKS.iter().map(|&chunk| chunks(rows, chunk));
    let halves = case.rows.iter().filter(|&&row| row > 0).map(|&row| vec![row, rows - row]);
    let (mut equal, mut tried) = (0, 0);
    for parts in parts.chain(halves) {
        let mut session = cpu_session(model, THREADS, kv, rows)?;
        let again = extend_all(&mut session, &case.ids, &parts)?;
        equal += usize::from(again.iter().map(|x| x.to_bits()).eq(logits.iter().map(|x| x.to_bits())));
        tried += 1;
    }
    let sha256 = outcome_hash(&logits, &tokens);
    let paths = CpuPath::all(CpuSettings::detect(THREADS, kv));
    let mut same_hash = 0;
    for path in &paths {
        let mut session = cpu_session_with(model, path.settings, rows + case.greedy.len())?;
        let logits = extend_all(&mut session, &case.ids, &chunks(rows, PASS))?;
        let tokens = greedy(&mut session, &logits[logits.len() - width..], checks.greedy_steps)?;
        same_hash += usize::from(outcome_hash(&logits, &tokens) == sha256);
    }
    Ok(Measured {
        kv,
        exact,
        diff: (max_abs_diff(&kept, &case.logits) / checks.logits_range, bound),
        greedy: (same.min(checks.greedy_steps), checks.greedy_steps),
        cuts: (equal, tried),
        paths: (same_hash, paths.len()),
        sha256,
    })
}

fn outcome_hash(logits: &[f32], tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    hash.update(hash_row(logits));
    for token in tokens {
        hash.update(token.to_le_bytes());
    }
    hex(&hash.finalize())
}

/// A Markdown table, and whether each bound in it is kept.
#[derive(Debug)]
pub struct Table {
    /// The table.
    pub text: String,
    /// What missed a bound or could not be run, one line each.
    pub missed: Vec<String>,
    /// Cases of architectures that are not supported.
    pub unsupported: Vec<String>,
}

fn verdict(good: bool) -> &'static str {
    if good { "ok" } else { "**missed**" }
}

/// Runs every tiny case of a supported architecture in every form that it has.
///
/// # Errors
/// If a case's reference cannot be read.
pub fn tiny() -> Result<Table> {
    let mut table = Table { text: String::new(), missed: Vec::new(), unsupported: Vec::new() };
    let heads = [
        "architecture",
        "case",
        "form",
        "config",
        "products",
        "KV",
        "max diff of range",
        "greedy",
        "cuts",
        "paths",
        "hash",
        "",
    ];
    table.text += &header(&heads);
    for case in Tiny::every()? {
        if !case.is_supported() {
            table.unsupported.push(case.name);
            continue;
        }
        for form in case.forms() {
            let (form_name, dialect) = match form {
                Form::Gguf => ("GGUF", ""),
                Form::Folder => ("folder", case.dialect.as_deref().unwrap_or("")),
            };
            let start = format!("| {} | {} | {form_name} | {dialect} |", case.architecture, case.name);
            match measure(&case, form) {
                Ok(rows) => rows.iter().for_each(|row| table.add(&start, &case.name, form_name, row)),
                Err(error) => {
                    let _ = writeln!(table.text, "{start} | | | | | | | **cannot run** |");
                    table.missed.push(format!("{} {form_name}: {error:#}", case.name));
                }
            }
        }
    }
    Ok(table)
}

impl Table {
    fn add(&mut self, start: &str, case: &str, form: &str, row: &Measured) {
        let products = if row.exact { "f32" } else { "bf16" };
        let ((diff, bound), (same, steps), (equal, cuts), (same_hash, paths)) =
            (row.diff, row.greedy, row.cuts, row.paths);
        let hash = &row.sha256[..16];
        let checks =
            format!("{diff:.1e} (<= {bound:.1e}) | {same}/{steps} | {equal}/{cuts} | {same_hash}/{paths} | {hash}");
        let _ = writeln!(self.text, "{start} {products} | {:?} | {checks} | {} |", row.kv, verdict(row.passes()));
        if !row.passes() {
            self.missed.push(format!("{case} {form} KV {:?}: {}", row.kv, checks.replace(" | ", ", ")));
        }
    }
}

fn header(heads: &[&str]) -> String {
    format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()))
}

/// Compares trained models, as `(name, file)`, with what the cases `NAME-kl*` keep of their references. Every instruction set must give one
/// hash; plain code is left out, which would take many minutes.
///
/// # Errors
/// If a model cannot be loaded or run, or has no such case.
pub fn divergence(models: &[(String, &Path)]) -> Result<Table> {
    let mut table = Table { text: String::new(), missed: Vec::new(), unsupported: Vec::new() };
    table.text += &header(&[
        "model",
        "case",
        "KV",
        "rows",
        "mean KL (nats)",
        "aim",
        "worst row",
        "same top token",
        "paths",
        "hash",
        "",
    ]);
    for (name, file) in models {
        let cases = case_names(&format!("{name}-kl"))?;
        ensure!(!cases.is_empty(), "no case {name}-kl");
        let model = model::load(file)?;
        for case_name in cases {
            let case = KlCase::load(&case_name)?;
            let kv = KvDtype::Bf16;
            let detected = CpuSettings::detect(THREADS, kv);
            let found = case.measure(&model, detected)?;
            let paths: Vec<_> =
                CpuPath::forced(detected).into_iter().filter(|path| path.pace == Pace::Vectors).collect();
            let mut same_hash = 0;
            for path in &paths {
                // The best one is what was detected.
                let same = path.settings == detected || case.measure(&model, path.settings)?.sha256 == found.sha256;
                same_hash += usize::from(same);
            }
            let bounds = case.bounds;
            let good = found.mean_kl <= bounds.mean_kl
                && found.same_top_token >= bounds.same_top_token
                && same_hash == paths.len();
            let _ = writeln!(
                table.text,
                "| {name} | {case_name} | {kv:?} | {} | {:.6} (<= {}) | {} | {:.4} | {:.2} % (>= {:.1}) | {same_hash}/{} | {} | {} |",
                found.rows,
                found.mean_kl,
                bounds.mean_kl,
                bounds.mean_kl_aim,
                found.worst_kl,
                found.same_top_token * 100.0,
                bounds.same_top_token * 100.0,
                paths.len(),
                &found.sha256[..16],
                verdict(good)
            );
            if !good {
                table.missed.push(format!("{case_name}: {found:?}"));
            }
        }
    }
    Ok(table)
}
