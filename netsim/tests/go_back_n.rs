//! The cost of a lost packet: all packets behind it until its sender hears of the loss.

use netsim::config::{Config, Faults, Pattern, Shape};
use netsim::flow::Message;
use netsim::shape::Plan;
use netsim::{NETWORKS, Network, Time, parse};
use roce::window::{AnyWindow, Fixed, SlowStart};

/// One of these is all.
const WHOLE: u64 = 1_000_000;

/// The times of a packet of 4,096 bytes and of an acknowledgement at 100 Gb/s, in picoseconds.
const PACKET: u64 = 80 * (4_190 + 24);
const ACKNOWLEDGEMENT: u64 = 80 * (82 + 24);

/// How long a flow sends, and how much it has to send.
const TIME: Time = Time::from_micros(10_000);
const MESSAGES: usize = 1_000;
const BYTES: u32 = 1 << 20;

/// Two hosts with two switches and three cables of so many picoseconds between them, of which the middle one loses so
/// many of 10,000 frames on their way from the first to the second.
fn network(
    delay: u64,
    loss: u32,
    window: impl Fn() -> AnyWindow + Clone + Send + 'static,
) -> Network {
    let mut config: Config = parse(NETWORKS).unwrap().remove("dumbbell").unwrap();
    config.shape = Shape::Dumbbell { pairs: 1 };
    config.traffic[0].pattern = Pattern::Shape;
    (config.host.delay, config.trunk.delay) = (delay, delay);
    let mut plan = Plan::new(&config);
    plan.cables[plan.watched[0]].links[0].faults = Faults { loss, ..Faults::NONE };
    let mut network: Network = Network::build(&plan, &config.switch, &[], 1).unwrap();
    for host in &mut network.hosts {
        let window = window.clone();
        host.stack.set_windows(move |_, _| window());
    }
    let messages = vec![Message { bytes: BYTES, start: Time(0) }; MESSAGES];
    network.add_flow(0, 1, 26 << 2, messages);
    network.run(TIME);
    network
}

/// The useful bytes as shares of all bytes sent, and of the bytes that the cable carries in that time.
fn efficiency(network: &Network) -> (u64, u64) {
    let flow = &network.flows()[0];
    let possible = TIME.0 / PACKET * 4_096;
    (flow.delivered * WHOLE / flow.sent, flow.delivered * WHOLE / possible)
}

/// Packets that are sent from a lost one on until its sender hears of the one behind it.
fn behind(delay: u64) -> u64 {
    let round_trip = 6 * delay + 3 * (PACKET + ACKNOWLEDGEMENT);
    1 + round_trip.div_ceil(PACKET)
}

/// (1 - p) / (1 + p · (N - 1)).
fn expected(loss: u32, behind: u64) -> u64 {
    let loss = u64::from(loss);
    (10_000 - loss) * WHOLE / (10_000 + loss * (behind - 1))
}

#[test]
fn a_loss_costs_what_was_sent_behind_it() {
    // How often a window that begins anew after a loss is beyond the same bound.
    let mut beyond = 0;
    for (micros, loss) in [(1, 30), (1, 100), (2, 10), (2, 100), (5, 10), (5, 30), (5, 100)] {
        let delay = micros * 1_000_000;
        let behind = behind(delay);
        let fixed = network(delay, loss, || AnyWindow::Fixed(Fixed::new(1_024)));
        let todays = network(delay, loss, || AnyWindow::SlowStart(SlowStart::default()));
        let (fixed, todays) = (efficiency(&fixed), efficiency(&todays));
        let expected = expected(loss, behind);
        let what = format!(
            "{loss} of 10,000 lost, N {behind}: {expected} expected; {fixed:?} with a fixed window, {todays:?} with today's"
        );
        println!("{what}");
        for share in [fixed.0, fixed.1] {
            assert!(share.abs_diff(expected) <= expected / 10, "{what}");
        }
        // A sender that repeats only lost packets does better than that.
        let lost = u64::from(loss) * WHOLE / 10_000;
        if u64::from(loss) * behind > 2_000 {
            assert!(fixed.0 < (WHOLE - lost) * 9 / 10, "{what}");
        }
        assert!(todays.1 < fixed.1, "{what}");
        beyond += u32::from(todays.1.abs_diff(expected) > expected / 10);
    }
    assert!(beyond >= 5, "{beyond} of 7");
}
