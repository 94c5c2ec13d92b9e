//! Connections that librdmacm makes and ends: `cmtime` between two cards of one balboad.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ibverbs_tests::setting::Daemon;

/// Connections that one run makes: as many as wait for a listener at most.
const MANY: u32 = 1000;
/// Connections, one behind the other, for how long one takes.
const SINGLES: usize = 20;
/// How long any one run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// The addresses of the two cards.
const SERVER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

/// What librdmacm's connections cost.
pub struct Connections {
    /// Connections that are made and ended in a second, where many are under way at once.
    pub per_second: f64,
    /// Microseconds until one alone is there.
    pub microseconds: f64,
}

/// Measures.
///
/// # Errors
/// When `cmtime` fails, or prints something else.
pub fn measure(daemon: &Daemon<'_>) -> Result<Connections> {
    let program = daemon.run("cmtime").limit(LIMIT);
    let mut server = program.words(&format!("-b {SERVER}")).start()?;
    let listeners = || -> Result<u64> {
        let status = daemon.status()?;
        status["connections"]["listeners"].as_u64().context("balboad tells of no listeners")
    };
    server.wait_until("it listened", |_| listeners().is_ok_and(|count| count > 0))?;
    let steps = |connections: u32| {
        let program = daemon.run("cmtime").limit(LIMIT);
        let words = format!("-b {CLIENT} -s {SERVER} -c {connections}");
        let printed = program.words(&words).run()?.success()?.stdout;
        Ok::<_, anyhow::Error>([step(&printed, "connect")?, step(&printed, "disconnect")?])
    };
    let [connect, disconnect] = steps(MANY)?;
    let mut singles = Vec::new();
    for _ in 0..SINGLES {
        singles.push(1e3 * steps(1)?[0]);
    }
    let microseconds = super::figures::median(&singles).context("there are some")?;
    let per_second = f64::from(MANY) / (connect + disconnect) * 1e3;
    Ok(Connections { per_second, microseconds })
}

/// Milliseconds of a step: `connect      :      332.96     286.00 …`.
fn step(printed: &str, name: &str) -> Result<f64> {
    let mut rows = printed.lines().filter_map(|line| line.split_once(':'));
    let (_, row) = rows
        .find(|(step, _)| step.trim() == name)
        .with_context(|| format!("cmtime tells no {name:?}: {printed}"))?;
    let total = row.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let total = total.with_context(|| format!("{row:?} is no row of cmtime's"))?;
    ensure!(total > 0.0, "{name} took no time: {printed}");
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "connecting\nstep              total ms     max ms     min us  us / conn\n\
        create id    :        6.88       0.07      16.00      22.93\n\
        connect      :      332.96     286.00    5327.00    1109.88\n\
        disconnect   :      188.33      67.47    1514.00     627.78\n";

    #[test]
    fn a_step_is_found_by_its_whole_name() {
        assert_eq!(step(PRINTED, "connect").unwrap(), 332.96);
        assert_eq!(step(PRINTED, "disconnect").unwrap(), 188.33);
        assert!(step(PRINTED, "destroy").is_err());
        assert!(step("connect : soon", "connect").is_err());
    }
}
