//! A hub on the loopback: listings, files with commit and etag, redirects to a host for large files that answers ranges, and every fault on request.
//!
//! It ends with the value that stands for it; a connection that says nothing for ten seconds ends too.

use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

pub(crate) const REPO: &str = "org/tiny";
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub holds, what it is to do wrong, and what it was asked.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Names in the listing that there are no files of.
    pub(crate) ghosts: Vec<String>,
    /// The token that is wanted, if one is.
    pub(crate) token: Option<String>,
    /// The status for those with the right token, instead of an answer.
    pub(crate) status_for_all: Option<u16>,
    /// Statuses of the next answers, whatever is asked.
    pub(crate) statuses: VecDeque<u16>,
    /// After how many bytes the next answers of the host for large files break off.
    pub(crate) cuts: VecDeque<usize>,
    /// Whole files are sent whatever range is asked for.
    pub(crate) ignores_ranges: bool,
    /// Every byte of large files is another than it should be.
    pub(crate) corrupts: bool,
    /// The etag of large files, instead of their SHA-256.
    pub(crate) etag: Option<String>,
    /// Before each piece of a large file.
    pub(crate) delay: Duration,
    /// After so many bytes of a large file nothing more is said.
    pub(crate) silent_after: Option<usize>,
    /// After the head of such an answer nothing more is said.
    pub(crate) is_mute: bool,
    /// Requests as `METHOD path [range] [token]`.
    pub(crate) requests: Vec<String>,
}

pub(crate) struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Hub {
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let files = files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, ended) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let server = {
            let (state, ended) = (Arc::clone(&state), Arc::clone(&ended));
            thread::spawn(move || {
                for stream in listener.incoming() {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    let (state, ended) = (Arc::clone(&state), Arc::clone(&ended));
                    // A client that goes away is no fault here.
                    thread::spawn(move || stream.and_then(|stream| answer(stream, address, &state, &ended)));
                }
            })
        };
        Self { address, state, ended, server: Some(server) }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What was asked since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        if let Some(server) = self.server.take() {
            server.join().unwrap();
        }
    }
}

pub(crate) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(file: &str) -> bool {
    file.ends_with(".gguf") || file.ends_with(".safetensors")
}

fn head(status: u16, headers: &[(&str, String)]) -> String {
    let mut text = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n"
}

fn answer(stream: TcpStream, address: SocketAddr, state: &Mutex<State>, ended: &AtomicBool) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(stream.try_clone()?).take(1 << 16).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let (mut range, mut token) = (None, None);
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => range = Some(value.to_owned()),
            "authorization" => token = Some(value.trim_start_matches("Bearer ").to_owned()),
            _ => {}
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut out = stream.try_clone()?;
    let sent = respond(&mut out, &method, &path, range, token, address, state, ended);
    out.shutdown(Shutdown::Both)?;
    sent
}

#[expect(clippy::too_many_arguments, reason = "all that a request says, and the server")]
fn respond(
    out: &mut TcpStream,
    method: &str,
    path: &str,
    range: Option<String>,
    token: Option<String>,
    address: SocketAddr,
    shared: &Mutex<State>,
    ended: &AtomicBool,
) -> std::io::Result<()> {
    let mut state = shared.lock().unwrap();
    let noted = [Some(format!("{method} {path}")), range.clone(), token.clone()];
    state.requests.push(noted.into_iter().flatten().collect::<Vec<_>>().join(" "));
    let status = |out: &mut TcpStream, status, code: &str| {
        out.write_all(head(status, &[("X-Error-Code", code.to_owned()), ("Content-Length", "0".to_owned())]).as_bytes())
    };
    if let Some(next) = state.statuses.pop_front() {
        return status(out, next, "");
    }
    if let Some(file) = path.strip_prefix("/cdn/") {
        let Some(mut content) = state.files.get(&file.replace("%20", " ")).cloned() else {
            return status(out, 404, "");
        };
        if state.corrupts {
            content.iter_mut().for_each(|byte| *byte ^= 0x55);
        }
        let start = range.filter(|_| !state.ignores_ranges);
        let start: Option<usize> = start.map(|r| r.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap());
        let length = ("Content-Length", (content.len() - start.unwrap_or(0)).to_string());
        let head = match start {
            Some(start) if start >= content.len() => return status(out, 416, ""),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
                head(206, &[length, ("Content-Range", range)])
            }
            None => head(200, &[length]),
        };
        let body = &content[start.unwrap_or(0)..];
        let body = &body[..state.cuts.pop_front().unwrap_or(body.len()).min(body.len())];
        let (delay, silent_after, is_mute) = (state.delay, state.silent_after, state.is_mute);
        drop(state);
        let wait_if = |silent: bool| {
            while silent && !ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
        };
        out.write_all(head.as_bytes())?;
        wait_if(is_mute);
        for piece in body.chunks(silent_after.unwrap_or(body.len().div_ceil(20)).max(1)) {
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            out.write_all(piece)?;
            wait_if(silent_after.is_some());
        }
        return Ok(());
    }
    if let Some(rest) = path.strip_prefix("/old/name/") {
        let place = format!("/{REPO}/{rest}");
        return out.write_all(head(307, &[("Location", place), ("Content-Length", "0".to_owned())]).as_bytes());
    }
    if state.token.is_some() && state.token != token {
        return status(out, 401, "RepoNotFound");
    }
    if let Some(instead) = state.status_for_all {
        return status(out, instead, "GatedRepo");
    }
    let is_known = |revision: &str| revision == "main" || revision == COMMIT || revision == "refs%2Fpr%2F1";
    if let Some(revision) = path
        .strip_prefix(&format!("/api/models/{REPO}/revision/"))
        .or(path.strip_prefix("/api/models/old/name/revision/"))
    {
        if !is_known(revision) {
            return status(out, 404, "RevisionNotFound");
        }
        let names: Vec<_> =
            state.files.keys().chain(&state.ghosts).map(|name| serde_json::json!({ "rfilename": name })).collect();
        let listing = serde_json::json!({ "sha": COMMIT, "siblings": names, "private": false }).to_string();
        let head = head(200, &[("Content-Length", listing.len().to_string())]);
        return out.write_all((head + &listing).as_bytes());
    }
    let Some((revision, file)) = path
        .strip_prefix(&format!("/{REPO}/resolve/"))
        .and_then(|rest| rest.split_once('/'))
        .filter(|(r, _)| is_known(r))
    else {
        return status(out, 404, "RepoNotFound");
    };
    assert_eq!(revision, COMMIT, "files are of the commit that was listed");
    let file = file.replace("%20", " ");
    let Some(content) = state.files.get(&file) else { return status(out, 404, "EntryNotFound") };
    let commit = ("X-Repo-Commit", COMMIT.to_owned());
    if is_large(&file) {
        let etag = state.etag.clone().unwrap_or_else(|| sha256(content));
        // Another name of this machine: what is meant for the hub alone must not be sent there.
        let place = format!("http://localhost:{}/cdn/{}", address.port(), file.replace(' ', "%20"));
        let headers = [
            commit,
            ("X-Linked-Etag", format!("\"{etag}\"")),
            ("X-Linked-Size", content.len().to_string()),
            ("Location", place),
            ("Content-Length", "0".to_owned()),
        ];
        return out.write_all(head(302, &headers).as_bytes());
    }
    let headers =
        [commit, ("ETag", format!("\"{}\"", &sha256(content)[..40])), ("Content-Length", content.len().to_string())];
    out.write_all(head(200, &headers).as_bytes())?;
    if method == "GET" { out.write_all(content) } else { Ok(()) }
}
