//! Products and attention alone, by the examples of their crates, which candle is no part of.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::markdown::{bytes, thousands};
use super::options::{Attention, Common, Linear};
use super::record::{Measurement, Point, Record, Unit};
use super::{Circumstances, process, roofline, turns};
use crate::shell;

/// The shape whose routes are compared: Gemma 3 270M's heads.
const COMPARED_HEADS: &str = "4:1:256";

/// Rows of the program's largest chunk.
const CHUNK_ROWS: usize = 512;

pub(super) fn linear(args: &Linear) -> Result<()> {
    roofline::build()?;
    let mut record = Record {
        title: "Matrix products".to_owned(),
        method: format!(
            "The shortest call of at least {} ms and five calls, in one process per instruction set and round; the median is over rounds. \
             With one thread its CPU time counts, else the time on the wall.",
            args.ms
        ),
        group_name: "type and instruction set",
        x_name: "rows",
        side_name: "inputs x outputs",
        bytes_name: "scratch",
        ..Record::of_program("linear", Unit::GigaMacsPerSecond)
    };
    let circumstances = Circumstances::begin(&args.common)?;
    record.peaks = circumstances.peaks.clone();
    let rows = list(&args.rows);
    for_each_turn(&args.common, |round, cpu| {
        let mut command = Command::new(shell::release_binary("examples/roofline"));
        command.args([cpu, &circumstances.threads.to_string(), &args.types, &rows, "--shapes", &args.shapes]);
        command.args(["--ms", &args.ms.to_string(), "--json"]);
        objects(&mut command)?.iter().try_for_each(|object| {
            record.measurements.push(product(round, object)?);
            Ok(())
        })
    })?;
    circumstances.end(record)
}

pub(super) fn attention(args: &Attention) -> Result<()> {
    let build =
        ["build", "--release", "--package", "plimsoll-attention", "--no-default-features", "--example", "throughput"];
    shell::run(&mut shell::cargo(build))?;
    let (compared_rows, compared_keys) = (args.reference_rows.get(), args.reference_keys.get());
    let mut method = format!(
        "The shortest call of {} ms, in one process per instruction set and round; the median is over rounds. The rows are the last ones of \
         the keys, and see all before them.",
        args.ms
    );
    if !args.no_reference {
        let scores =
            |rows: usize| Ok::<_, anyhow::Error>(bytes(4 * 4 * u64::try_from(rows)? * u64::try_from(compared_keys)?));
        method += &format!(
            " The reference is the definition, in plain code, a row of a head at a time. Scores in f32 over 4 heads, rows and {} keys, kept whole, \
             would take {} for {} rows and {} for all.",
            thousands(compared_keys),
            scores(CHUNK_ROWS)?,
            CHUNK_ROWS,
            scores(compared_keys)?,
        );
    }
    let mut record = Record {
        title: "Attention".to_owned(),
        method,
        group_name: "shape",
        x_name: "keys",
        side_name: "route",
        bytes_name: "workspace",
        ..Record::of_program("attention", Unit::GigaMacsPerSecond)
    };
    let circumstances = Circumstances::begin(&args.common)?;
    record.peaks = circumstances.peaks.clone();
    let (rows, kv_lens, threads) = (list(&args.rows), list(&args.kv_lens), circumstances.threads.to_string());
    for_each_turn(&args.common, |round, cpu| {
        let base = || {
            let mut command = Command::new(shell::release_binary("examples/throughput"));
            command.args(["--isa", cpu, "--threads", &threads, "--ms", &args.ms.to_string(), "--json"]);
            command
        };
        let mut command = base();
        command.args([
            "--heads",
            &args.heads,
            "--rows",
            &rows,
            "--kv-lens",
            &kv_lens,
            "--kv-dtype",
            &args.kv_dtypes.join(","),
        ]);
        for object in objects(&mut command)? {
            record.measurements.push(call(round, &object, "")?);
        }
        if !args.no_reference {
            let (rows, keys) = (compared_rows.to_string(), compared_keys.to_string());
            // The reference is plain code on any instruction set: once a round is enough.
            let is_first = args.common.cpu.first().is_none_or(|first| first == cpu);
            let routes = if is_first { "tiled,reference" } else { "tiled" };
            let mut command = base();
            command.args(["--heads", COMPARED_HEADS, "--rows", &rows, "--kv-lens", &keys, "--routes", routes]);
            for object in objects(&mut command)? {
                record.measurements.push(call(round, &object, "Tiled against reference: ")?);
            }
        }
        Ok(())
    })?;
    circumstances.end(record)
}

/// Every instruction set in every round, another one first each time.
fn for_each_turn(common: &Common, mut turn: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let own = ["auto".to_owned()];
    let cpus = if common.cpu.is_empty() { &own[..] } else { &common.cpu[..] };
    for round in 0..common.runs.get() {
        for index in turns(round, cpus.len()) {
            println!("round {}, {}", round + 1, cpus[index]);
            turn(round, &cpus[index])?;
        }
    }
    Ok(())
}

fn list(numbers: &[std::num::NonZeroUsize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The objects that a program prints, one a line.
fn objects(command: &mut Command) -> Result<Vec<Value>> {
    let printed = process::run(command)?.stdout;
    printed.lines().map(|line| serde_json::from_str(line).with_context(|| format!("no JSON object: {line}"))).collect()
}

fn text<'a>(object: &'a Value, name: &str) -> Result<&'a str> {
    object.get(name).and_then(Value::as_str).with_context(|| format!("no `{name}` in {object}"))
}

fn number(object: &Value, name: &str) -> Result<f64> {
    object.get(name).and_then(Value::as_f64).with_context(|| format!("no `{name}` in {object}"))
}

fn whole(object: &Value, name: &str) -> Result<usize> {
    let number = object.get(name).and_then(Value::as_u64).with_context(|| format!("no `{name}` in {object}"))?;
    Ok(usize::try_from(number)?)
}

fn product(round: usize, object: &Value) -> Result<Measurement> {
    let rows = whole(object, "rows")?;
    let point = Point {
        group: format!("{}, {}", text(object, "type")?, text(object, "isa")?),
        x: rows,
        side: format!("{} x {}", whole(object, "in_features")?, whole(object, "out_features")?),
        ours: true,
        own_peak: object.get("peak").and_then(Value::as_str).map(str::to_owned),
    };
    measurement(round, point, object, rows, "scratch_bytes", String::new())
}

fn call(round: usize, object: &Value, prefix: &str) -> Result<Measurement> {
    let rows = whole(object, "rows")?;
    let (heads, kv_heads, head_dim) = (whole(object, "heads")?, whole(object, "kv_heads")?, whole(object, "head_dim")?);
    let (route, isa, dtype) = (text(object, "route")?, text(object, "isa")?, text(object, "kv_dtype")?);
    let is_tiled = route == "tiled";
    let point = Point {
        group: format!(
            "{prefix}{heads}:{kv_heads} heads of {head_dim}, {} {}, {dtype}",
            thousands(rows),
            if rows == 1 { "row" } else { "rows" }
        ),
        x: whole(object, "kv_len")?,
        side: if is_tiled { format!("tiled {isa}") } else { route.to_owned() },
        ours: is_tiled,
        own_peak: is_tiled.then(|| own_peak(isa)).flatten(),
    };
    measurement(round, point, object, rows, "workspace_bytes", text(object, "kernel")?.to_owned())
}

fn own_peak(isa: &str) -> Option<String> {
    match isa {
        "amx" => Some("amx-bf16".to_owned()),
        "avx512" | "avx2" | "neon" => Some(format!("{isa}-f32")),
        _ => None,
    }
}

fn measurement(
    round: usize,
    point: Point,
    object: &Value,
    rows: usize,
    bytes: &str,
    detail: String,
) -> Result<Measurement> {
    Ok(Measurement {
        round,
        point,
        seconds: number(object, "seconds")?,
        tokens: rows as f64,
        macs: Some(number(object, "macs")?),
        bytes: object.get(bytes).and_then(Value::as_u64),
        detail,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_product_is_read() {
        let object = json!({"isa": "avx2", "threads": 2, "type": "Q4_1", "rows": 512, "in_features": 576, "out_features": 1536,
            "seconds": 0.5, "macs": 5e9, "peak": "avx2-f32", "scratch_bytes": 64});
        let measurement = product(3, &object).unwrap();
        assert_eq!(
            (measurement.round, measurement.bytes, measurement.value(Unit::GigaMacsPerSecond)),
            (3, Some(64), 10.0)
        );
        let Point { group, x, side, ours, own_peak } = measurement.point;
        assert_eq!((group.as_str(), x, side.as_str(), ours), ("Q4_1, avx2", 512, "576 x 1536", true));
        assert_eq!(own_peak.as_deref(), Some("avx2-f32"));
        assert!(product(0, &json!({"rows": 1})).unwrap_err().to_string().contains("no `type`"));
    }

    #[test]
    fn the_reference_is_whom_tiles_are_compared_with() {
        let mut object = json!({"route": "tiled", "kernel": "avx512-bf16-tiled", "isa": "avx512", "threads": 1, "kv_dtype": "bf16",
            "heads": 4, "kv_heads": 1, "head_dim": 256, "rows": 8192, "kv_len": 8192, "seconds": 1.0, "macs": 1e9, "workspace_bytes": 9});
        let tiled = call(0, &object, "").unwrap();
        object["route"] = "reference".into();
        let reference = call(0, &object, "").unwrap();
        assert_eq!(tiled.point.group, "4:1 heads of 256, 8,192 rows, bf16");
        assert_eq!(tiled.point.group, reference.point.group);
        assert_eq!((tiled.point.side.as_str(), tiled.point.ours), ("tiled avx512", true));
        assert_eq!(
            (reference.point.side.as_str(), reference.point.ours, reference.point.own_peak),
            ("reference", false, None)
        );
    }
}
