//! The command lines about a port's priorities: `balboa qos`.

use clap::{Args, Subcommand};

use super::{CardName, StateDir};

/// `balboa qos`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Qos {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// Show or set.
    #[command(subcommand)]
    pub action: QosAction,
}

/// What is done to a port's priorities.
#[derive(Debug, Subcommand)]
pub enum QosAction {
    /// Show the settings
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the settings that the words name, all of them or none
    Set {
        /// The settings, in the words of dcb(8)
        #[arg(required = true, value_name = "WORD")]
        words: Vec<String>,
    },
}

pub(super) const QOS_HELP: &str = "\
Software cards whose cable has a rate (balboad --fault rate=10G) have a queue for each traffic class at both ends of it.
The words are those of dcb(8) of iproute2:

  ets tc-tsa TC:strict TC:ets   strict classes go before the others, the highest first
      tc-bw TC:PERCENT          how those of ets share what is left; 100 in all
      prio-tc PRIO:TC           the class of a priority
  pfc prio-pfc PRIO:on|off      whether senders of a priority are paused before anything is lost
  app dscp-prio DSCP:PRIO       the priority of a DSCP, which is the upper six bits of the traffic class
  apptrust order dscp|pcp       whether that counts, or the 802.1Q tag, which has the service level

In place of a number `all` means each. A setting that is not named stays. They last until balboad ends. Only the user
who runs balboad may change them.

Exit codes: 0 done; 1 it could not be done; 2 wrong words, or numbers that make no sense. Nothing has changed then, and
the reason was told.

Examples:
  balboa qos balboa0 show
  balboa qos balboa0 set apptrust order dscp ets tc-tsa all:ets 6:strict tc-bw 0:10 3:60 4:30
  balboa qos balboa0 set pfc prio-pfc 3:on app dscp-prio 26:3";
