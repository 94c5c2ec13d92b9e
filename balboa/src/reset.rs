//! `balboa reset`: a card that begins anew.

use std::time::Duration;

use nix::unistd::geteuid;
use terminal::say;

use crate::args;
use crate::client::ToolClient;
use crate::question::ask;
use crate::state::{self, text};

/// Asks, resets a card, and says when it is back; whether it was to be.
///
/// # Errors
/// When there is no such balboad or card, or it cannot be reset.
pub fn reset(arguments: &args::Reset) -> anyhow::Result<bool> {
    let args::Reset { state_dir, card, yes } = arguments;
    let state = state::fetch(state_dir.path())?;
    state::card(&state, *card)?;
    if !yes {
        let users = state::clients_of(&state, *card);
        let users =
            users.iter().map(|it| format!("{} ({})", text(&it["command"]), text(&it["pid"])));
        if !ask(&question(&card.to_string(), &users.collect::<Vec<_>>()))? {
            return Ok(false);
        }
    }
    let dir = shim_abi::state_dir(state_dir.path(), geteuid().as_raw());
    let told = match ToolClient::connect(&dir, Duration::ZERO)?.reset(card.0)? {
        0 => format!("{card} was reset"),
        programs => {
            format!("{card} was reset; {programs} programs still have the former card open")
        }
    };
    say(format_args!("{told}\n"))?;
    Ok(true)
}

/// The question to the user.
fn question(card: &str, users: &[String]) -> String {
    let consequence = match users {
        [] => format!("no program has {card} open"),
        users => format!(
            "{} will be told that the device is gone, and what is under way fails",
            users.join(", ")
        ),
    };
    format!("{consequence}. Reset {card}?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_it_costs_something_is_named_before() {
        let users = ["ib_write_bw (42)".to_owned()];
        let asked = question("balboa0", &users);
        assert!(asked.starts_with("ib_write_bw (42) will be told"), "{asked}");
        assert!(asked.ends_with("Reset balboa0?"), "{asked}");
        assert!(question("balboa0", &[]).starts_with("no program has balboa0 open"));
    }
}
