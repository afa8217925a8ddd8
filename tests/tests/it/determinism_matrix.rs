//! The determinism matrix in its short form, and that it finds what it is there for.

use anyhow::{Context, Result, ensure};
use plimsoll_attention::KvDtype;
use plimsoll_models::LogitRows;
use plimsoll_program::Op;
use plimsoll_tests::{
    matrix::{Axis, Cut, How, Plan, Programs, Report, Scale, Star, run},
    model::RandomLlama,
    pass::{feed, new_sequence},
    random::Random,
    row_trace::RowTrace,
    subject::{MATRIX_CASES, Subject},
};

fn programs() -> Programs {
    Programs { helper: Some(env!("CARGO_BIN_EXE_determinism").into()), plimsoll: None }
}

#[test]
fn every_point_of_the_short_matrix_is_equal() -> Result<()> {
    let mut report = Report::default();
    for name in MATRIX_CASES {
        let subject = Subject::tiny(name, 130)?;
        let plan = Plan {
            rows: vec![1, 31, 130],
            kv: vec![KvDtype::Bf16],
            scale: Scale::Short,
            // Processes are slow to start: those of a dense and of a hybrid model are enough here.
            axes: if ["tiny-gemma3", "tiny-qwen3_next"].contains(&name) { &Axis::ALL[..] } else { &Axis::ALL[..11] }
                .to_vec(),
        };
        run(&subject, &plan, &programs(), &mut report, |_| ())?;
    }
    let faults = report.faults();
    ensure!(faults.is_empty(), "{} lines:\n{}", faults.len(), faults.join("\n"));
    for axis in Axis::ALL {
        assert!(report.rows().iter().any(|row| row.axis == Some(axis)), "no point of {axis:?}");
    }
    println!("{} runs are equal to their base points", report.compared());
    Ok(())
}

/// What names the step at fault must itself see no fault where there is none, in passes of every kind.
#[test]
fn traces_of_every_point_are_equal() -> Result<()> {
    for name in ["tiny-gemma3", "tiny-qwen3_5_moe"] {
        let subject = Subject::tiny(name, 100)?;
        let star = Star::new(&subject, 100, KvDtype::Bf16)?;
        let whole = star.trace(&How::Cut(Cut::Parts(vec![100])))?;
        // Of the 131 rows that go through the model, each step but those of the logits has one.
        assert!(whole.hashes() > 131 * 20, "{name}: {} hashes", whole.hashes());
        for point in star.points(Scale::Short, &Axis::ALL) {
            if matches!(point.how, How::Process(_)) {
                continue;
            }
            let traced = star.trace(&point.how)?;
            // Rows that come from a cache go through no step.
            let all = traced.hashes() >= whole.hashes() || matches!(point.how, How::Cached(_));
            assert!(all && traced.hashes() > 40 * 20, "{name} {point:?}: {} hashes", traced.hashes());
            assert_eq!(whole.first_difference(&traced), None, "{name} {point:?}");
        }
    }
    Ok(())
}

/// A llama of three layers; of the second's `ffn_down`, the sign of one weight is turned if `flawed`.
fn llama(flawed: bool) -> Result<Subject> {
    let model = RandomLlama::small(3).model_with(12, |name, bytes| {
        if flawed && name == "blk.1.ffn_down.weight" {
            bytes[3] ^= 0x80;
        }
    })?;
    Subject::random("llama", model, 40)
}

#[test]
fn a_product_that_gives_other_bits_is_found_at_its_step() -> Result<()> {
    let (sound, flawed) = (llama(false)?, llama(true)?);
    let star = Star::between(&sound, &flawed, 40, KvDtype::F32)?;
    let program = &sound.model.architecture().program;
    let is_flawed = |op: &Op| match op {
        Op::Linear { parts, .. } => parts.iter().any(|part| program.slot(part.weight).name == "blk.1.ffn_down.weight"),
        _ => false,
    };
    let step = program.main().steps().iter().position(|step| is_flawed(&step.op)).context("no step has the weight")?;
    let axes: Vec<Axis> = Axis::ALL.into_iter().filter(|&axis| axis != Axis::Process).collect();
    for point in star.points(Scale::Short, &axes) {
        let row = star.compare(&point, &Programs::default()).context("a point that needs no program")?;
        let said = row.difference.as_deref().with_context(|| format!("{point:?} is equal"))?;
        assert!(!row.is_equal());
        let found = star.difference(&point.how, &Programs::default())?.with_context(|| format!("{point:?}: {said}"))?;
        assert_eq!((found.position, found.step, &*found.op), (0, step, "linear"), "{point:?}: {said}");
        assert!(said.contains(&found.to_string()) && found.label.starts_with("layer 1"), "{point:?}: {said}");
    }
    let mut report = Report::default();
    report.add(star.base_row());
    let whole = star.points(Scale::Short, &[Axis::Chunk]).pop().context("no point")?;
    report.add(star.compare(&whole, &Programs::default()).context("no row")?);
    assert_eq!((report.faults().len(), report.table().matches("**no**: first at step").count()), (1, 1));
    Ok(())
}

/// What a lost update would do: the last key and value of the first chunk, in one layer, are other ones.
#[test]
fn a_wrong_key_is_found_at_the_first_row_that_reads_it() -> Result<()> {
    let subject = llama(false)?;
    let sizes = RandomLlama::small(3);
    let row = sizes.kv_heads * (sizes.hidden_size / sizes.heads);
    let run = |wrong: bool| -> Result<RowTrace> {
        let mut executor = subject.executor(1, KvDtype::F32)?;
        let mut sequence = new_sequence(&subject.model, KvDtype::F32, 40)?;
        let mut trace = RowTrace::new(&subject.model);
        for (index, tokens) in [&subject.prompt[..25], &subject.prompt[25..]].into_iter().enumerate() {
            if index == 1 && wrong {
                sequence.append(1, 24, &vec![0.5; row], &vec![-0.25; row], 1)?;
            }
            let parts = [tokens.len()];
            feed(&mut executor, &mut sequence, tokens, &parts, LogitRows::Last, &mut trace, |_, _| ())?;
        }
        Ok(trace)
    };
    let found = run(false)?.first_difference(&run(true)?).context("a wrong key changed nothing")?;
    assert_eq!((found.position, &*found.op), (25, "attend"), "{found}");
    assert!(found.label.starts_with("layer 1"), "{found}");
    assert_eq!(run(false)?.first_difference(&run(false)?), None);
    Ok(())
}

/// A row's trace is of its position, not of where in a pass it was.
#[test]
fn a_trace_of_another_prompt_parts_at_the_first_other_token() -> Result<()> {
    let subject = llama(false)?;
    let trace = |tokens: &[u32], parts: &[usize]| -> Result<RowTrace> {
        let mut trace = RowTrace::new(&subject.model);
        let mut sequence = new_sequence(&subject.model, KvDtype::F32, 40)?;
        let mut executor = subject.executor(1, KvDtype::F32)?;
        feed(&mut executor, &mut sequence, tokens, parts, LogitRows::None, &mut trace, |_, _| ())?;
        Ok(trace)
    };
    let mut random = Random::new(5);
    let mut other = subject.prompt.clone();
    other[17] = (other[17] + 1) % u32::try_from(subject.vocab_size())?;
    for _ in 0..5 {
        let (ours, theirs) = (random.partition(40), random.partition(40));
        let found = trace(&subject.prompt, &ours)?.first_difference(&trace(&other, &theirs)?);
        assert_eq!(found.context("another token")?.position, 17, "{ours:?} and {theirs:?}");
    }
    Ok(())
}
