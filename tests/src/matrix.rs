//! The determinism matrix: a star of requests around one base point, one axis at a time, all of which must give the same bits.

mod answer;
mod history;
mod neighbours;
mod points;
mod prefix;
mod process;
mod report;
mod request;
mod star;

pub use answer::{Answer, GREEDY_TOKENS};
pub use history::History;
pub use points::{Axis, DEFINITION_ROWS, How, PLAIN_CODE_ROWS, Point, Scale, points};
pub use prefix::Cached;
pub use process::{Programs, answer_alone};
pub use report::{Report, Row};
pub use request::{Cut, Money};
pub use star::{Plan, Star, kv_dtype, run};
