//! What a random program must compute: acts over values that are never overwritten, run one after the other.

use plimsoll_program::Dims;

use crate::interpret::Arith;

/// Something the eager evaluator does. Values go by number.
#[derive(Debug)]
pub(crate) enum Act {
    Apply { arith: Arith, args: Vec<usize>, out: usize },
    If { condition: EagerCondition, then_acts: Vec<Self>, else_acts: Vec<Self>, results: Vec<[usize; 3]> },
    Scan { body: Vec<Self>, rows: Vec<(usize, usize, usize)>, carries: Vec<[usize; 4]>, outputs: Vec<(usize, usize)> },
}

#[derive(Debug)]
pub(crate) enum EagerCondition {
    RowsAtMost(usize),
    Nonzero(usize),
}

/// Runs acts over values that are never overwritten in place.
pub(crate) fn evaluate(acts: &[Act], values: &mut Vec<Vec<f32>>, dims: &Dims) {
    for act in acts {
        match act {
            Act::Apply { arith, args, out } => {
                let args: Vec<&[f32]> = args.iter().map(|&arg| values[arg].as_slice()).collect();
                let result = arith.apply(&args, dims);
                values[*out] = result;
            }
            Act::If { condition, then_acts, else_acts, results } => {
                let holds = match *condition {
                    EagerCondition::RowsAtMost(rows) => dims.rows <= rows,
                    EagerCondition::Nonzero(value) => values[value][0] != 0.0,
                };
                evaluate(if holds { then_acts } else { else_acts }, values, dims);
                for &[then_result, else_result, out] in results {
                    values[out] = values[if holds { then_result } else { else_result }].clone();
                }
            }
            Act::Scan { body, rows, carries, outputs } => {
                // [initial, seen by the body, next, final]
                for &[initial, seen, _, _] in carries {
                    values[seen] = values[initial].clone();
                }
                for &(_, stacked) in outputs {
                    values[stacked] = Vec::new();
                }
                for row in 0..dims.rows {
                    for &(source, shown, width) in rows {
                        values[shown] = values[source][row * width..][..width].to_vec();
                    }
                    evaluate(body, values, dims);
                    for &(result, stacked) in outputs {
                        let result = values[result].clone();
                        values[stacked].extend(result);
                    }
                    let next: Vec<Vec<f32>> = carries.iter().map(|carry| values[carry[2]].clone()).collect();
                    for (&[_, seen, _, _], next) in carries.iter().zip(next) {
                        values[seen] = next;
                    }
                }
                for &[_, seen, _, last] in carries {
                    values[last] = values[seen].clone();
                }
            }
        }
    }
}
