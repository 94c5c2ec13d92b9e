//! Connections that librdmacm makes and ends: `cmtime` between two cards of one balboad.

use anyhow::{Context as _, Result, ensure};
use harness::cmtime::{Cmtime, Printed};
use harness::setting::{Daemon, Setting};

/// Connections that one run makes: as many as wait for a listener at most.
const MANY: u32 = 1000;
/// Connections, one behind the other, for how long one takes.
const SINGLES: usize = 20;

/// The cost of librdmacm's connections.
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
pub fn measure(setting: &Setting, daemon: &Daemon<'_>) -> Result<Connections> {
    let program = Cmtime::new(setting, daemon)?;
    let many = program.run(MANY)?;
    let mut singles = Vec::new();
    for _ in 0..SINGLES {
        singles.push(1e3 * connecting(&program.run(1)?)?);
    }
    let microseconds = super::figures::median(&singles).context("there are some")?;
    let per_second = f64::from(MANY) / (connecting(&many)? + ending(&many)?) * 1e3;
    Ok(Connections { per_second, microseconds })
}

/// Milliseconds until all connections were there.
fn connecting(printed: &Printed) -> Result<f64> {
    step(&printed.client, "connect")
}

/// Milliseconds until all connections had ended. Where both sides tell, the client's time is that of its asking
/// alone; the server's is from the first one of which it hears to the last that it has ended.
fn ending(printed: &Printed) -> Result<f64> {
    step(printed.server.as_ref().unwrap_or(&printed.client), "disconnect")
}

/// Milliseconds of a step, of the first table where there are several: later ones are without queue pairs.
fn step(printed: &str, name: &str) -> Result<f64> {
    let total = printed.lines().find_map(|line| total(line, name));
    let total = total.with_context(|| format!("cmtime tells no {name:?}: {printed}"))?;
    ensure!(total > 0.0, "{name} took no time: {printed}");
    Ok(total)
}

/// Milliseconds, where a line is a step's: the first number of `connect      :      332.96     286.00 …`, or the
/// second of `cm connect            332     332960 …`, which is in microseconds (rdma-core 52 and later).
fn total(line: &str, name: &str) -> Option<f64> {
    let first = |row: &str, at: usize| row.split_whitespace().nth(at)?.parse::<f64>().ok();
    if let Some((step, row)) = line.split_once(':') {
        return if step.trim() == name { first(row, 0) } else { None };
    }
    let row = line.strip_prefix("cm ").unwrap_or(line).strip_prefix(name)?;
    Some(first(row, 1)? / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_44: &str = "connecting\nstep              total ms     max ms     min us  us / conn\n\
        create id    :        6.88       0.07      16.00      22.93\n\
        connect      :      332.96     286.00    5327.00    1109.88\n\
        disconnect   :      188.33      67.47    1514.00     627.78\n";
    const CLIENT_56: &str = "Connect (200) QPs test\n\
        \tConnecting\n\
        qp_conn               200\n\
        step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)\n\
        full connect         2660     532011          0          0     529351     474033\n\
        cm connect            302      60429      24113    4822763      42912       2451\n\
        disconnect            204      40838        203      40782      12010         29\n\
        cm_conn               200\n\
        step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)\n\
        full connect          332      66458          0          0      63645      30710\n\
        cm connect            180      36124      13581    2716269      20054        317\n\
        disconnect             66      13343         66      13257        167         21\n";
    const SERVER_56: &str = "Accept (200) QPs test\n\
        \tDisconnecting\n\
        qp_conn               200\n\
        step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)\n\
        full connect            0          0          0          0          0          0\n\
        cm connect            300      60168          0          0          0          0\n\
        disconnect            205      41117        204      40924      11920         19\n\
        cm_conn               200\n\
        step             avg/iter  total(us)    us/conn    sum(us)    max(us)    min(us)\n\
        full connect            0          0          0          0          0          0\n\
        cm connect            179      35956          0          0          0          0\n\
        disconnect             70      14097         70      14044        163         21\n";

    #[test]
    fn steps_of_a_client_that_tells_alone_are_read() {
        let printed = Printed { client: CLIENT_44.to_owned(), server: None };
        assert_eq!(connecting(&printed).unwrap(), 332.96);
        assert_eq!(ending(&printed).unwrap(), 188.33);
    }

    #[test]
    fn where_both_tell_the_ending_is_the_servers() {
        let [client, server] = [CLIENT_56, SERVER_56].map(str::to_owned);
        let printed = Printed { client, server: Some(server) };
        assert_eq!(connecting(&printed).unwrap(), 60.429);
        assert_eq!(ending(&printed).unwrap(), 41.117);
    }

    #[test]
    fn a_step_that_is_not_told_is_missed() {
        for printed in ["connect : soon", "connect soon", "full connect   1 2", CLIENT_44] {
            assert!(step(printed, "destroy").is_err());
        }
        assert!(step("connect : soon", "connect").is_err());
        assert!(step("cm connect    0    0    0", "connect").is_err());
    }
}
