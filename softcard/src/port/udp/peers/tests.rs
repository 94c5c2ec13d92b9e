use std::net::{IpAddr, Ipv4Addr};

use super::*;

const OTHER: Pair = pair(2);
const ROOM: usize = 1 << 20;

/// The card and a host of its network.
const fn pair(host: u8) -> Pair {
    let own = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    Pair { own, peer: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)) }
}

/// Two ports, of which the first asks the second.
fn acquainted() -> (Peers, Peers) {
    let (mut one, mut two) = (Peers::new(ROOM, 1), Peers::new(ROOM, 2));
    one.known(OTHER);
    let question = one.question(0, OTHER).unwrap();
    let answer = two.hear(0, OTHER, &question).unwrap();
    assert_eq!(one.hear(0, OTHER, &answer), None);
    (one, two)
}

#[test]
fn only_who_answered_is_sent_segments() {
    let (mut one, mut two) = acquainted();
    assert!(one.get(OTHER).unwrap().takes_segments(0));
    // Any host may have asked.
    assert!(!two.get(OTHER).unwrap().takes_segments(0));
    // An answer that was not asked for, or to another question.
    let mut third = Peers::new(ROOM, 3);
    third.known(OTHER);
    let question = third.question(0, OTHER).unwrap();
    let answer = two.hear(0, OTHER, &question).unwrap();
    for forged in
        [Word { mark: answer.mark ^ 2, ..answer }, Word { kind: WordKind::Tell, ..answer }]
    {
        third.hear(0, OTHER, &forged);
        assert!(!third.get(OTHER).unwrap().takes_segments(0));
    }
    third.hear(0, OTHER, &answer);
    assert!(third.get(OTHER).unwrap().takes_segments(0));
}

#[test]
fn no_mark_follows_from_what_a_port_says_of_itself() {
    let mark = |_| {
        let mut peers = Peers::new(ROOM, 1);
        peers.known(OTHER);
        peers.question(0, OTHER).unwrap().mark
    };
    let [one, other] = [(); 2].map(mark);
    assert_ne!(one, other);
}

#[test]
fn refused_segments_are_told_once_and_are_tried_again_where_they_may_pass() {
    let (mut one, _) = acquainted();
    let peer = one.get(OTHER).unwrap();
    assert!(peer.refuse_segments(false) && !peer.refuse_segments(false));
    assert!(peer.takes_segments(0));
    assert!(!peer.refuse_segments(true) && !peer.takes_segments(0));
}

#[test]
fn no_more_is_under_way_than_the_receiver_has_room_for() {
    let (mut one, mut two) = acquainted();
    let mut under_way = 0;
    for _ in 0..10_000 {
        if one.get(OTHER).unwrap().has_room() {
            one.get(OTHER).unwrap().count_sent(cost(4096));
            under_way += cost(4096);
            assert!(under_way <= ROOM as u64 / 2 + cost(4096));
        } else {
            let window = two.window();
            let mut is_due = false;
            while !is_due {
                is_due = two.get(OTHER).unwrap().count_received(0, cost(4096), window);
                under_way -= cost(4096);
            }
            let word = two.tell(OTHER, WordKind::Tell, 0).unwrap();
            one.hear(0, OTHER, &word);
            assert!(one.get(OTHER).unwrap().has_room());
        }
    }
}

#[test]
fn what_was_lost_is_not_waited_for() {
    let (mut one, mut two) = acquainted();
    while one.get(OTHER).unwrap().has_room() {
        one.get(OTHER).unwrap().count_sent(cost(4096));
    }
    one.hurry(0, OTHER);
    let mut now = 0;
    while !one.get(OTHER).unwrap().has_room() {
        now += ASK_FULL_NS;
        assert!(now < 4 * ON_ITS_WAY_NS);
        let question = one.question(now, OTHER).unwrap();
        let answer = two.hear(now, OTHER, &question).unwrap();
        one.hear(now, OTHER, &answer);
    }
}

#[test]
fn what_was_lost_is_not_waited_for_where_always_something_stands_in_line() {
    let (mut one, mut two) = acquainted();
    while one.get(OTHER).unwrap().has_room() {
        one.get(OTHER).unwrap().count_sent(cost(4096));
    }
    let mut now = 0;
    let mut answers = 0;
    while !one.get(OTHER).unwrap().has_room() {
        now += ASK_FULL_NS;
        one.hurry(now, OTHER);
        let Some(question) = one.question(now, OTHER) else { continue };
        let answer = two.hear(now, OTHER, &question).unwrap();
        one.hear(now, OTHER, &Word { kind: WordKind::Busy, ..answer });
        answers += 1;
    }
    // So many until a question is answered, and so many until all that was sent before it is counted.
    assert_eq!(answers, 2 * MOST_BUSY);
}

#[test]
fn what_stands_in_line_is_not_lost() {
    let (mut one, mut two) = acquainted();
    while one.get(OTHER).unwrap().has_room() {
        one.get(OTHER).unwrap().count_sent(cost(4096));
    }
    let mut now = 0;
    for _ in 0..10 * MOST_BUSY {
        now += 10 * ON_ITS_WAY_NS;
        let window = two.window();
        two.get(OTHER).unwrap().count_received(now, 1, window);
        one.hurry(0, OTHER);
        let question = one.question(now, OTHER).unwrap();
        let answer = two.hear(now, OTHER, &question).unwrap();
        one.hear(now, OTHER, &Word { kind: WordKind::Busy, ..answer });
    }
    let peer = one.get(OTHER).unwrap();
    assert!(peer.under_way() + u64::from(11 * MOST_BUSY) > peer.window, "{peer:?}");
}

#[test]
fn who_has_not_answered_yet_has_little_under_way_and_a_stranger_keeps_to_nothing() {
    let mut one = Peers::new(ROOM, 1);
    one.known(OTHER);
    let mut under_way = 0;
    let mut now = 0;
    let send = |one: &mut Peers, under_way: &mut u64| {
        while *under_way < ROOM as u64 && one.get(OTHER).unwrap().has_room() {
            one.get(OTHER).unwrap().count_sent(cost(4096));
            *under_way += cost(4096);
        }
    };
    for _ in 0..FULL_PATIENCE_NS / ASK_FULL_NS {
        one.question(now, OTHER);
        send(&mut one, &mut under_way);
        assert!(under_way <= LEAST_WINDOW + cost(4096));
        one.hurry(now, OTHER);
        now += ASK_FULL_NS;
    }
    one.question(now, OTHER);
    now += ASK_FULL_NS;
    one.question(now, OTHER);
    // A host that asks in its name holds nothing back.
    for session in 5..9 {
        let forged = Word { kind: WordKind::Ask, session, of: 0, mark: 3, received: 0, window: 0 };
        one.hear(now, OTHER, &forged);
        under_way = 0;
        send(&mut one, &mut under_way);
        assert!(under_way >= ROOM as u64);
    }
    assert_eq!(one.given_up, 0);
    // To a group nothing is asked.
    let group = Pair { peer: "239.1.1.1".parse().unwrap(), ..OTHER };
    one.known(group).count_sent(ROOM as u64);
    assert!(one.get(group).unwrap().has_room());
}

#[test]
fn a_loss_now_and_then_leaves_the_window_as_large() {
    let (mut one, mut two) = acquainted();
    let mut now = 0;
    for number in 0..200_000_u64 {
        now += 10_000;
        if one.get(OTHER).unwrap().has_room() {
            one.get(OTHER).unwrap().count_sent(cost(4096));
            let window = two.window();
            let is_lost = number % 1000 == 0;
            if !is_lost && two.get(OTHER).unwrap().count_received(now, cost(4096), window) {
                let word = two.tell(OTHER, WordKind::Tell, 0).unwrap();
                one.hear(now, OTHER, &word);
            }
        } else {
            one.hurry(now, OTHER);
        }
        if let Some(question) = one.question(now, OTHER) {
            let answer = two.hear(now, OTHER, &question).unwrap();
            one.hear(now, OTHER, &answer);
        }
    }
    let peer = one.get(OTHER).unwrap();
    assert!(peer.sent > 100_000 * cost(4096), "{peer:?}");
}

#[test]
fn who_does_not_know_our_session_is_not_believed() {
    let mut one = Peers::new(ROOM, 1);
    one.known(OTHER);
    let question = one.question(0, OTHER).unwrap();
    let answer = Word {
        kind: WordKind::Answer,
        session: 9,
        of: 77,
        mark: question.mark,
        received: 5,
        window: 1,
    };
    one.hear(0, OTHER, &answer);
    assert!(one.get(OTHER).unwrap().has_room() && !one.get(OTHER).unwrap().answers());
}

#[test]
fn a_count_that_begins_anew_is_believed_and_a_forged_question_changes_nothing() {
    let (mut one, mut two) = acquainted();
    let window = two.window();
    for _ in 0..10 {
        one.get(OTHER).unwrap().count_sent(9000);
        two.get(OTHER).unwrap().count_received(0, 9000, window);
    }
    let word = two.tell(OTHER, WordKind::Tell, 0).unwrap();
    one.hear(0, OTHER, &word);
    // Somebody asks in the other's name, with another session: the other is asked, and goes on.
    let forged = Word { kind: WordKind::Ask, session: 5, of: 0, mark: 3, received: 0, window: 0 };
    let asked = one.hear(ASK_NS, OTHER, &forged).unwrap();
    assert_eq!(asked.kind, WordKind::Ask);
    assert!(one.get(OTHER).unwrap().answers());
    // The receiver has forgotten its count.
    two.get(OTHER).unwrap().received = 0;
    let answer = two.hear(ASK_NS, OTHER, &asked).unwrap();
    one.hear(ASK_NS, OTHER, &answer);
    let peer = one.get(OTHER).unwrap();
    assert_eq!((peer.heard, peer.under_way()), (0, 0));
}

#[test]
fn who_answers_no_more_is_a_stranger() {
    let (mut one, _) = acquainted();
    while one.get(OTHER).unwrap().has_room() {
        one.get(OTHER).unwrap().count_sent(cost(4096));
    }
    one.hurry(0, OTHER);
    let mut now = 0;
    while now <= FULL_PATIENCE_NS + 2 * ASK_FULL_NS {
        now += ASK_FULL_NS;
        one.question(now, OTHER);
    }
    assert_eq!(one.given_up, 1);
    let peer = one.get(OTHER).unwrap();
    assert!(peer.has_room() && !peer.takes_segments(0));
}

#[test]
fn who_was_not_asked_for_long_may_be_another() {
    let (mut one, mut two) = acquainted();
    let later = 10 * PATIENCE_NS;
    assert!(!one.get(OTHER).unwrap().takes_segments(later));
    let question = one.question(later, OTHER).unwrap();
    let answer = two.hear(later, OTHER, &question).unwrap();
    one.hear(later, OTHER, &answer);
    assert!(one.get(OTHER).unwrap().takes_segments(later));
}

#[test]
fn a_balboad_that_began_anew_is_no_longer_the_old_one() {
    let (mut one, _) = acquainted();
    one.get(OTHER).unwrap().count_sent(9000);
    let mut anew = Peers::new(ROOM, 7);
    one.get(OTHER).unwrap().next_question = 0;
    let question = one.question(5, OTHER).unwrap();
    let answer = anew.hear(0, OTHER, &question).unwrap();
    one.hear(0, OTHER, &answer);
    let peer = one.get(OTHER).unwrap();
    assert!(peer.takes_segments(0));
    assert_eq!((peer.session, peer.under_way()), (7, 0));
}

#[test]
fn the_numbers_of_a_balboad_are_those_of_segments() {
    let mut peers = Peers::new(ROOM, 1);
    assert!(peers.stranger(OTHER).admits_number(700, false));
    assert!(!peers.stranger(OTHER).admits_number(9, false));
    let ask = Word { kind: WordKind::Ask, session: 9, of: 0, mark: 1, received: 0, window: 0 };
    peers.hear(0, OTHER, &ask);
    assert!(peers.stranger(OTHER).admits_number(63, false));
    assert!(!peers.stranger(OTHER).admits_number(90, false));
}

#[test]
fn where_it_is_strict_no_host_counts_but_a_balboads_segments() {
    let mut peers = Peers::new(ROOM, 1);
    for id in 1..5 {
        assert!(!peers.stranger(OTHER).admits_number(id, true));
    }
    let ask = Word { kind: WordKind::Ask, session: 9, of: 0, mark: 1, received: 0, window: 0 };
    peers.hear(0, OTHER, &ask);
    assert!(peers.stranger(OTHER).admits_number(63, true));
    assert!(!peers.stranger(OTHER).admits_number(64, true));
    assert!(!peers.stranger(OTHER).admits_number(65, true));
}

#[test]
fn strangers_are_answered_at_a_rate_and_whoever_is_known_at_once() {
    let mut peers = Peers::new(ROOM, 1);
    peers.known(OTHER);
    let ask = Word { kind: WordKind::Ask, session: 9, of: 0, mark: 1, received: 0, window: 0 };
    let stranger = pair(3);
    let mut answers = |now: u64, count: u64| {
        (0..count).filter(|_| peers.hear(now, stranger, &ask).is_some()).count() as u64
    };
    assert_eq!(answers(0, 2 * MOST_ANSWERS), MOST_ANSWERS);
    assert_eq!(answers(10 * ANSWER_NS, 100), 10);
    let late = 10 * MOST_ANSWERS * ANSWER_NS;
    assert_eq!(answers(late, 2 * MOST_ANSWERS), MOST_ANSWERS, "they are not saved up");
    assert_eq!(peers.unanswered, 2 * MOST_ANSWERS + 90);
    assert!(peers.hear(late, OTHER, &ask).is_some());
    // Nor is anything kept of a host without an answer.
    assert!(peers.hear(late, pair(4), &ask).is_none() && peers.get(pair(4)).is_none());
}

#[test]
fn what_passes_between_other_addresses_of_two_balboads_is_counted_apart() {
    let (mut one, _) = acquainted();
    let by_another = Pair { own: pair(9).peer, ..OTHER };
    one.known(by_another);
    while one.get(OTHER).unwrap().has_room() {
        one.get(OTHER).unwrap().count_sent(cost(4096));
    }
    let peer = one.get(by_another).unwrap();
    assert!(peer.has_room() && peer.under_way() == 0 && !peer.takes_segments(0));
}

#[test]
fn a_balboad_that_answered_has_the_numbers_of_segments_alone() {
    let (mut one, mut two) = acquainted();
    assert!(one.get(OTHER).unwrap().admits_number(63, false));
    assert!(!one.get(OTHER).unwrap().admits_number(64, false));
    // A question alone, which any host may have asked, silences no host that counts.
    assert!(two.get(OTHER).unwrap().admits_number(700, false));
}

#[test]
fn questions_in_the_names_of_others_leave_the_window_as_large() {
    let (mut one, _) = acquainted();
    let window = one.window();
    let ask = Word { kind: WordKind::Ask, session: 9, of: 0, mark: 1, received: 0, window: 0 };
    for number in 0..200_u32 {
        let stranger = Pair { peer: IpAddr::V4((0x0a01_0000 + number).into()), ..OTHER };
        assert!(one.hear(u64::from(number) * COUNTED_NS / 20, stranger, &ask).is_some());
    }
    assert_eq!(one.window(), window);
}

#[test]
fn hosts_that_are_sent_to_are_bounded() {
    let mut peers = Peers::new(ROOM, 1);
    for number in 0..2 * MOST_PEERS as u32 {
        let peer = peers.known(Pair { peer: IpAddr::V4(number.into()), ..OTHER });
        peer.standing = Standing::Balboad;
    }
    assert!(peers.table.len() <= MOST_PEERS);
}

#[test]
fn who_sends_to_many_hosts_has_no_stranger_forgotten_that_is_known_to_be_one() {
    let mut peers = Peers::new(ROOM, 1);
    peers.known(OTHER).standing = Standing::Stranger;
    for number in 0..2 * MOST_PEERS as u32 {
        peers.known(Pair { peer: IpAddr::V4(number.into()), ..OTHER });
    }
    assert!(peers.get(OTHER).is_some_and(|peer| peer.standing == Standing::Stranger));
}

#[test]
fn nothing_is_kept_of_the_0_of_who_is_not_known() {
    let mut peers = Peers::new(ROOM, 1);
    peers.wrote_zero(OTHER);
    assert!(peers.get(OTHER).is_none());
    peers.known(OTHER);
    peers.wrote_zero(OTHER);
    assert!(!peers.stranger(OTHER).admits_number(700, false), "it is damage");
}

#[test]
fn strangers_are_bounded() {
    let mut peers = Peers::new(ROOM, 1);
    for number in 0..10 * MOST_STRANGERS as u32 {
        peers.stranger(Pair { peer: IpAddr::V4(number.into()), ..OTHER });
    }
    assert!(peers.table.len() <= MOST_STRANGERS);
}
