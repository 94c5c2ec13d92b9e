//! Multicast groups: the queue pairs in them, and the reports of them to routers and switches.
//!
//! The port sends two reports (IGMPv3, MLDv2) of a group that gets its first member or loses its last, and answers a
//! router's question at some time of those that the question allows. Programs that join and leave, and stations that
//! ask, can make it send at most one report of each kind, of many groups, in [`param::REPORT_INTERVAL`].

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::error::Error;
use crate::param;
use crate::types::{Gid, Instant, MacAddr, Qpn};
use crate::wire::{igmp, mld};
use igmp::RecordType;

/// A group's change or question that reports still have to tell.
#[derive(Clone, Copy, Debug)]
struct News {
    /// Reports that tell of the change: its first member, or its last.
    changes: u8,
    /// Whether a router has asked.
    asked: bool,
    /// When the next report is due. Then, if there is nothing to tell, this is forgotten.
    at: Instant,
}

/// A report that is due: of groups of one kind, at most as many as one has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Whether of IPv4's groups.
    pub ipv4: bool,
    pub records: Vec<(RecordType, Gid)>,
}

/// Questions for members of all groups of a kind.
#[derive(Debug, Default)]
struct General {
    /// When the answer to those that were asked is due.
    at: Option<Instant>,
    /// When the next answer may begin: each looks at all groups, however many ask.
    pause: Instant,
}

/// The groups of a port.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<Gid, BTreeSet<Qpn>>,
    news: BTreeMap<Gid, News>,
    /// The state of questions for all IPv6 groups, and for all IPv4 groups.
    general: [General; 2],
    /// The last group of the last report: the next one begins behind it, so that all get their turn.
    last: Gid,
    /// A time not after the next due report; `None` while there is no news.
    next: Option<Instant>,
    /// When the next report may be sent.
    pause: Instant,
    /// Grows with each question, so that ports do not all answer at the same time.
    questions: u64,
}

impl Groups {
    /// Bytes that a queue pair's place in a group takes at most, as its only member.
    pub(crate) const BYTES_OF_EACH: usize =
        2 * (size_of::<(Gid, BTreeSet<Qpn>)>() + size_of::<(Gid, News)>() + size_of::<[Qpn; 12]>());

    /// Takes a queue pair into a group; once more does nothing.
    pub(crate) fn join(&mut self, now: Instant, group: Gid, qpn: Qpn) -> Result<(), Error> {
        let count = self.members.len();
        match self.members.get_mut(&group) {
            Some(members) if members.contains(&qpn) => {}
            // UD-22
            Some(members) if members.len() >= param::MAX_GROUP_MEMBERS => {
                return Err(Error::TooManyMembers { group, limit: param::MAX_GROUP_MEMBERS });
            }
            Some(members) => {
                members.insert(qpn);
            }
            None if count >= param::MAX_GROUPS => {
                return Err(Error::TooManyGroups(param::MAX_GROUPS));
            }
            None => {
                self.members.insert(group, BTreeSet::from([qpn]));
                self.change(now, group);
            }
        }
        Ok(())
    }

    /// Takes a queue pair out of a group; `false` if it is not in it.
    pub(crate) fn leave(&mut self, now: Instant, group: Gid, qpn: Qpn) -> bool {
        let Some(members) = self.members.get_mut(&group) else { return false };
        let was = members.remove(&qpn);
        if members.is_empty() {
            self.members.remove(&group);
            self.change(now, group);
        }
        was
    }

    /// Whether a group has members here.
    #[inline]
    pub(crate) fn has(&self, group: Gid) -> bool {
        !self.members.is_empty() && self.members.contains_key(&group)
    }

    /// How many groups have members here.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether any group has members here.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The member of a group behind `last`, or the first.
    pub(crate) fn next_member(&self, group: Gid, last: Option<Qpn>) -> Option<Qpn> {
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.members.get(&group)?.range(behind).next().copied()
    }

    /// The members of a group.
    pub(crate) fn members(&self, group: Gid) -> impl Iterator<Item = Qpn> {
        self.members.get(&group).into_iter().flatten().copied()
    }

    /// Notes that a group has got its first member, or lost its last.
    fn change(&mut self, now: Instant, group: Gid) {
        if !is_told_of(group) {
            return;
        }
        // A router's next question finds the group without members.
        let is_gone = !self.members.contains_key(&group);
        if is_gone && self.news.len() >= 2 * param::MAX_GROUPS {
            self.news.remove(&group);
            return;
        }
        // UD-23
        let news = self.news.entry(group).or_insert(News { changes: 0, asked: false, at: now });
        news.changes = param::REPORTS_OF_CHANGE;
        // The router's question may have allowed much more time.
        news.at = news.at.min(now.after(param::REPEAT_INTERVAL));
        let at = news.at;
        self.wake_at(at);
    }

    fn wake_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    // UD-24
    /// Takes a router's question for the members of a group, or of all groups of a kind; the answer is due after a part
    /// of the time that there is for it, another one on each port.
    pub(crate) fn asked(
        &mut self,
        now: Instant,
        ipv4: bool,
        group: Option<Gid>,
        within: Duration,
        mac: MacAddr,
    ) {
        let at = now.after(self.part_of(within, mac));
        let at = match group {
            Some(group) if self.members.contains_key(&group) && is_told_of(group) => {
                ask_for(&mut self.news, group, at);
                at
            }
            None if !self.members.is_empty() => {
                let [of_ipv6, of_ipv4] = &mut self.general;
                let general = if ipv4 { of_ipv4 } else { of_ipv6 };
                let at = general.at.map_or(at, |before| before.min(at)).max(general.pause);
                general.at = Some(at);
                at
            }
            _ => return,
        };
        self.wake_at(at);
    }

    /// Begins to answer the questions for all groups of a kind that are due.
    fn answer_general(&mut self, now: Instant) {
        for (general, ipv4) in self.general.iter_mut().zip([false, true]) {
            if general.at.is_none_or(|at| at > now) {
                continue;
            }
            *general = General { at: None, pause: now.after(param::REPEAT_INTERVAL) };
            let of_kind = |group: &&Gid| group.as_ipv4().is_some() == ipv4 && is_told_of(**group);
            for group in self.members.keys().filter(of_kind) {
                ask_for(&mut self.news, *group, now);
            }
        }
    }

    /// Reports all groups anew, for the switch at the cable may not know of them.
    pub(crate) fn tell_all(&mut self, now: Instant) {
        let groups: Vec<Gid> = self.members.keys().copied().collect();
        groups.into_iter().for_each(|group| self.change(now, group));
    }

    /// A part of a time that others cannot foresee, unless they see all of the port's traffic.
    fn part_of(&mut self, within: Duration, mac: MacAddr) -> Duration {
        self.questions = self.questions.wrapping_add(1);
        let [a, b, c, d, e, f] = mac.0;
        let seed = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) ^ self.questions.rotate_right(16);
        let mixed = (seed ^ seed >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let nanos = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((u128::from(nanos).wrapping_mul(mixed.into()) >> 32) as u64)
    }

    /// The time at which [`Groups::poll`] has work.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.next.map(|next| next.max(self.pause))
    }

    /// The next report that is due.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Report> {
        if self.next_timeout().is_none_or(|at| at > now) {
            return None;
        }
        self.answer_general(now);
        let groups = self.due(now);
        let report = groups.last().copied().map(|last| {
            self.last = last;
            self.pause = now.after(param::REPORT_INTERVAL);
            let records = groups.into_iter().filter_map(|group| self.record(now, group)).collect();
            Report { ipv4: last.as_ipv4().is_some(), records }
        });
        let answers = self.general.iter().filter_map(|general| general.at);
        self.next = self.news.values().map(|news| news.at).chain(answers).min();
        report.filter(|report| !report.records.is_empty())
    }

    /// The groups of the next report, all of a kind.
    fn due(&self, now: Instant) -> Vec<Gid> {
        let is_due = |(group, news): (&Gid, &News)| (news.at <= now).then_some(*group);
        let behind = self.news.range((Bound::Excluded(self.last), Bound::Unbounded));
        let mut due = behind.chain(self.news.range(..=self.last)).filter_map(is_due).peekable();
        let Some(ipv4) = due.peek().map(|first| first.as_ipv4().is_some()) else {
            return Vec::new();
        };
        let most = if ipv4 { igmp::MAX_RECORDS } else { mld::MAX_RECORDS };
        due.take_while(|group| group.as_ipv4().is_some() == ipv4).take(most).collect()
    }

    /// The record that a group is due now; it counts as sent.
    fn record(&mut self, now: Instant, group: Gid) -> Option<(RecordType, Gid)> {
        let is_member = self.members.contains_key(&group);
        let news = self.news.get_mut(&group)?;
        let kind = match (news.changes, is_member) {
            (1.., true) => RecordType::Joined,
            (1.., false) => RecordType::Left,
            (0, true) if news.asked => RecordType::IsMember,
            _ => {
                self.news.remove(&group);
                return None;
            }
        };
        let changes = news.changes.saturating_sub(1);
        *news = News { changes, asked: false, at: now.after(param::REPEAT_INTERVAL) };
        Some((kind, group))
    }
}

/// Notes that a router has asked for a group.
fn ask_for(news: &mut BTreeMap<Gid, News>, group: Gid, at: Instant) {
    let news = news.entry(group).or_insert(News { changes: 0, asked: true, at });
    news.asked = true;
    news.at = news.at.min(at);
}

/// Whether members of a group are told of: not of the one that every host is in, nor of those that no
/// link carries.
fn is_told_of(group: Gid) -> bool {
    match group.as_ipv4() {
        Some(group) => group != igmp::ALL_HOSTS,
        None => {
            let address = group.as_ipv6();
            let [_, flags_and_scope, ..] = address.octets();
            address != mld::ALL_NODES && flags_and_scope & 0xf > 1
        }
    }
}
