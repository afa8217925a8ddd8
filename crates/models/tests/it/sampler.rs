//! The sampler from outside: the same seed gives the same tokens.

use std::{collections::BTreeMap, fs, path::Path};

use plimsoll_models::sampler::{Sampler, SamplerError, SamplerParams, greedy};
use serde::Deserialize;

fn draw(params: SamplerParams, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params).expect("valid parameters");
    (0..count).map(|_| sampler.sample(logits).expect("valid logits")).collect()
}

/// Share of each token among many draws.
fn shares(params: &SamplerParams, logits: &[f32]) -> Vec<f64> {
    const DRAWS: usize = 40_000;
    let mut counts = vec![0u32; logits.len()];
    for id in draw(params.clone(), logits, DRAWS) {
        counts[id as usize] += 1;
    }
    counts.into_iter().map(|count| f64::from(count) / DRAWS as f64).collect()
}

fn check_shares(params: SamplerParams, logits: &[f32], want: &[f64]) {
    let got = shares(&params, logits);
    for (id, (got, want)) in got.iter().zip(want).enumerate() {
        // Five standard deviations of a share among 40,000 draws; an excluded token is never drawn.
        let bound = if *want == 0.0 { 0.0 } else { 5.0 * (want * (1.0 - want) / 40_000.0).sqrt() };
        assert!((got - want).abs() <= bound, "token {id}: share {got}, want {want}, {params:?}");
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_the_most_likely() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, -1.0]), Ok(1));
    assert_eq!(greedy(&[f32::NEG_INFINITY, -5.0]), Ok(1));
    assert_eq!(greedy(&[-0.0, 0.0]), Ok(0));
    assert_eq!(greedy(&[0.0, f32::INFINITY, f32::INFINITY]), Ok(1));
    assert_eq!(draw(SamplerParams::default(), &[0.0, 7.0, 7.0], 3), [1, 1, 1]);
}

#[test]
fn logits_without_a_choice_are_refused() {
    let params = SamplerParams { temperature: 1.0, ..SamplerParams::default() };
    for params in [params, SamplerParams::default()] {
        let mut sampler = Sampler::new(params).unwrap();
        assert_eq!(sampler.sample(&[0.0, f32::NAN]), Err(SamplerError::NanLogit { id: 1, vocab_size: 2 }));
        assert_eq!(sampler.sample(&[]), Err(SamplerError::NoCandidate { vocab_size: 0 }));
        let masked = [f32::NEG_INFINITY; 3];
        assert_eq!(sampler.sample(&masked), Err(SamplerError::NoCandidate { vocab_size: 3 }));
    }
}

#[test]
fn parameters_out_of_range_are_refused_with_their_value() {
    let check = |params, want: &str| assert_eq!(Sampler::new(params).unwrap_err().to_string(), want);
    let base = SamplerParams::default();
    check(
        SamplerParams { temperature: -0.5, ..base.clone() },
        "temperature is -0.5, must be a finite number of at least 0",
    );
    check(
        SamplerParams { temperature: f32::NAN, ..base.clone() },
        "temperature is NaN, must be a finite number of at least 0",
    );
    check(
        SamplerParams { temperature: f32::INFINITY, ..base.clone() },
        "temperature is inf, must be a finite number of at least 0",
    );
    check(SamplerParams { top_k: Some(0), ..base.clone() }, "top_k is 0, must be at least 1");
    check(SamplerParams { top_p: 0.0, ..base.clone() }, "top_p is 0, must be above 0 and at most 1");
    check(SamplerParams { top_p: 1.5, ..base.clone() }, "top_p is 1.5, must be above 0 and at most 1");
    check(SamplerParams { top_p: f32::NAN, ..base.clone() }, "top_p is NaN, must be above 0 and at most 1");
    check(SamplerParams { min_p: -0.1, ..base.clone() }, "min_p is -0.1, must be at least 0 and at most 1");
    check(SamplerParams { min_p: f32::NAN, ..base.clone() }, "min_p is NaN, must be at least 0 and at most 1");
    check(SamplerParams { typical_p: 0.0, ..base.clone() }, "typical_p is 0, must be above 0 and at most 1");
    check(
        SamplerParams { repetition_penalty: 0.0, ..base.clone() },
        "repetition_penalty is 0, must be a finite number above 0 (1 changes nothing)",
    );
    check(
        SamplerParams { presence_penalty: f32::INFINITY, ..base.clone() },
        "presence_penalty is inf, must be a finite number (0 changes nothing)",
    );
    check(
        SamplerParams { frequency_penalty: f32::NAN, ..base.clone() },
        "frequency_penalty is NaN, must be a finite number (0 changes nothing)",
    );
    check(
        SamplerParams { logit_bias: [(3, f32::INFINITY)].into(), ..base.clone() },
        "logit_bias of token 3 is inf, must be a finite number, or minus infinity to exclude the token",
    );
    let past = SamplerParams { logit_bias: [(1, 1.0), (7, 1.0)].into(), ..base };
    let error = SamplerError::BiasPastVocabulary { id: 7, vocab_size: 7 };
    assert_eq!(error.to_string(), "logit_bias names token 7, the vocabulary has 7 tokens");
    assert_eq!(past.check_vocabulary(7), Err(error.clone()));
    assert_eq!(past.check_vocabulary(8), Ok(()));
    assert_eq!(Sampler::new(past).unwrap().sample(&[0.0; 7]), Err(error));
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [0.5f32.ln(), 0.125f32.ln(), f32::NEG_INFINITY, 0.25f32.ln(), 0.125f32.ln()];
    let base = SamplerParams { temperature: 1.0, seed: 11, ..SamplerParams::default() };
    check_shares(base.clone(), &logits, &[0.5, 0.125, 0.0, 0.25, 0.125]);
    // Squared and normalized.
    check_shares(
        SamplerParams { temperature: 0.5, ..base.clone() },
        &logits,
        &[16.0 / 22.0, 1.0 / 22.0, 0.0, 4.0 / 22.0, 1.0 / 22.0],
    );
    // Of the two equal tokens the lower id is in.
    check_shares(
        SamplerParams { top_k: Some(3), ..base.clone() },
        &logits,
        &[4.0 / 7.0, 1.0 / 7.0, 0.0, 2.0 / 7.0, 0.0],
    );
    check_shares(SamplerParams { top_p: 0.6, ..base.clone() }, &logits, &[2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0, 0.0]);
    // 0.4 of what the two leave, 2/3 and 1/3, is the first alone.
    check_shares(SamplerParams { top_k: Some(2), top_p: 0.4, ..base.clone() }, &logits, &[1.0, 0.0, 0.0, 0.0, 0.0]);
    check_shares(SamplerParams { top_k: Some(100), ..base.clone() }, &logits, &[0.5, 0.125, 0.0, 0.25, 0.125]);
    check_shares(base, &[f32::INFINITY, 1.0, f32::INFINITY], &[0.5, 0.0, 0.5]);
}

#[test]
fn one_seed_gives_one_sequence_for_ever() {
    let logits: Vec<f32> = (0..1000u32).map(|i| ((i * 7919) % 1000) as f32 / 250.0).collect();
    let params = SamplerParams { temperature: 0.8, top_p: 0.95, seed: 42, ..SamplerParams::default() };
    let first = draw(params.clone(), &logits, 6);
    assert_eq!(first, draw(params.clone(), &logits, 6));
    assert_ne!(first, draw(SamplerParams { seed: 43, ..params.clone() }, &logits, 6));
    // By the same definition in Python; a change here is a change of every user's results.
    assert_eq!(first, [361, 593, 902, 359, 568, 103]);
}

#[test]
fn a_large_top_k_changes_nothing() {
    let logits: Vec<f32> = (0..300).map(|i| (i % 50) as f32 / 10.0).collect();
    let params = SamplerParams { temperature: 1.3, seed: 5, ..SamplerParams::default() };
    assert_eq!(
        draw(params.clone(), &logits, 50),
        draw(SamplerParams { top_k: Some(300), ..params.clone() }, &logits, 50)
    );
}

#[test]
fn extreme_temperatures_stay_defined() {
    let params = SamplerParams { temperature: f32::from_bits(1), ..SamplerParams::default() };
    assert_eq!(draw(params.clone(), &[1.0, 2.0, 2.0 - 1e-6], 20), [1; 20]);
    let shares = shares(&SamplerParams { temperature: f32::MAX, ..params }, &[0.0, 100.0]);
    assert!((shares[0] - 0.5).abs() < 0.02, "{shares:?}");
}

#[test]
fn biases_and_penalties_change_what_greedy_takes() {
    let base = SamplerParams::default();
    let logits = [1.0, 4.0, 3.5, -1.0, 3.0];
    // 4 falls by 0.6 each time it was taken, 3.5 likewise.
    let frequency = SamplerParams { frequency_penalty: 0.6, ..base.clone() };
    assert_eq!(draw(frequency, &logits, 5), [1, 2, 1, 4, 2]);
    let presence = SamplerParams { presence_penalty: 0.75, ..base.clone() };
    assert_eq!(draw(presence, &logits, 5), [1, 2, 1, 1, 1]);
    let bias = SamplerParams { logit_bias: [(1, f32::NEG_INFINITY), (3, 4.0), (4, 0.25)].into(), ..base.clone() };
    assert_eq!(draw(bias, &logits, 2), [2, 2]);
    let excluded = SamplerParams { logit_bias: (0..5).map(|id| (id, f32::NEG_INFINITY)).collect(), ..base.clone() };
    let error = Sampler::new(excluded).unwrap().sample(&[f32::INFINITY; 5]);
    assert_eq!(error, Err(SamplerError::NoCandidate { vocab_size: 5 }));
    // The prompt counts for repetition, not for presence or frequency; ids past the head are no fault.
    let repetition = SamplerParams { repetition_penalty: 2.0, ..base.clone() };
    let mut sampler = Sampler::new(SamplerParams { presence_penalty: 0.1, ..repetition }).unwrap();
    sampler.observe_prompt(&[1, 1, 900]);
    assert_eq!([(); 3].map(|()| sampler.sample(&logits).unwrap()), [2, 4, 1]);
    let mut sampler = Sampler::new(SamplerParams { presence_penalty: 9.0, ..base }).unwrap();
    sampler.observe_prompt(&[1, 1]);
    assert_eq!(sampler.sample(&logits), Ok(1));
}

#[test]
fn a_failed_draw_is_not_remembered() {
    let params = SamplerParams { temperature: 1.0, presence_penalty: 2.0, seed: 9, ..SamplerParams::default() };
    let logits = [0.0, 1.0, 0.5, 0.25];
    let want = draw(params.clone(), &logits, 12);
    let mut sampler = Sampler::new(params).unwrap();
    let got: Vec<u32> = (0..12)
        .map(|_| {
            assert!(sampler.sample(&[f32::NAN; 4]).is_err());
            sampler.distribution(&logits).unwrap();
            sampler.sample(&logits).unwrap()
        })
        .collect();
    assert_eq!(got, want);
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

/// `tests/golden/sampler/make.py` says what the fields mean.
#[derive(Deserialize)]
struct Case {
    vocab_size: u32,
    multiplier: u32,
    temperature: f32,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
    prompt: Vec<u32>,
    bias: BTreeMap<u32, f32>,
    ids: Vec<u32>,
    probabilities: Vec<f64>,
}

#[test]
fn filters_and_penalties_leave_what_they_leave_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/sampler/case.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let golden: Golden = serde_json::from_str(&text).unwrap();
    assert!(golden.cases.len() >= 60, "{} cases", golden.cases.len());
    for case in golden.cases {
        let logits: Vec<f32> =
            (0..case.vocab_size).map(|id| (id * case.multiplier % 1021) as f32 / 64.0 - 9.0).collect();
        let params = SamplerParams {
            temperature: case.temperature,
            top_k: case.top_k,
            top_p: case.top_p.unwrap_or(1.0),
            min_p: case.min_p.unwrap_or(0.0),
            typical_p: case.typical_p.unwrap_or(1.0),
            repetition_penalty: case.repetition_penalty.unwrap_or(1.0),
            logit_bias: case.bias,
            ..SamplerParams::default()
        };
        let mut sampler = Sampler::new(params.clone()).unwrap();
        sampler.observe_prompt(&case.prompt);
        let mut got = sampler.distribution(&logits).unwrap();
        got.sort_unstable_by_key(|&(id, _)| id);
        // What transformers computes in f32 may keep a token of no weight here.
        let want: Vec<(u32, f64)> = case.ids.into_iter().zip(case.probabilities).collect();
        let ids = |pairs: &[(u32, f64)]| pairs.iter().map(|&(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(&got), ids(&want), "{params:?}");
        for ((id, got), (_, want)) in got.into_iter().zip(want) {
            assert!((got - want).abs() <= 1e-5 * want.max(1e-3), "token {id}: {got}, want {want}, {params:?}");
        }
    }
}
