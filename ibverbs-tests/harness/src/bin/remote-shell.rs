//! Runs one command line on another machine, for launchers that would take ssh: `remote-shell HOST WORD...` here, and
//! `remote-shell serve` there, which takes one command and ends with it. For machines of the tests alone: it serves
//! every client that reaches the port.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use harness::pair::REMOTE_SHELL;

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let words: Vec<String> = arguments.by_ref().collect();
    let code = match words.split_first() {
        Some((serve, [])) if serve == "serve" => serve_one()?,
        Some((host, words)) if !words.is_empty() => ask(host, &words.join(" "))?,
        _ => bail!("usage: remote-shell serve, or remote-shell HOST WORD..."),
    };
    Ok(ExitCode::from(code))
}

/// Asks the host to run a line, and gives the exit code.
fn ask(host: &str, line: &str) -> Result<u8> {
    let stream = TcpStream::connect((host, REMOTE_SHELL));
    let mut stream = stream.with_context(|| format!("{host} does not serve"))?;
    writeln!(stream, "{line}")?;
    let mut code = String::new();
    BufReader::new(stream).read_line(&mut code)?;
    code.trim().parse().with_context(|| format!("{host} ended before the command"))
}

/// Runs the line of the first client; the line's output goes where this program's does.
fn serve_one() -> Result<u8> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, REMOTE_SHELL))?;
    let (mut stream, _) = listener.accept()?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let mut shell = Command::new("sh");
    // OpenMPI 5 ends without a home, which a machine of the tests has not.
    shell.args(["-c", &line]).env("HOME", "/tmp").stdin(Stdio::null());
    let status = shell.status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(255);
    writeln!(stream, "{code}")?;
    Ok(code)
}
