//! The goals of figures, and whether they are reached.

use super::figures::{Column, Figures};

/// How a figure does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The goal is reached.
    Good,
    /// Good enough, not as good as wanted.
    BelowWanted,
    /// Not good enough: a defect.
    BelowFloor,
    /// The figure to compare with was not measured.
    Unknown,
}

impl Verdict {
    /// The word for it in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "as wanted",
            Self::BelowWanted => "above floor",
            Self::BelowFloor => "BELOW FLOOR",
            Self::Unknown => "unknown",
        }
    }
}

/// A figure against its goals, both in the figure's unit.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The row.
    pub metric: &'static str,
    /// The least, or the most, that will do.
    pub floor: Option<f64>,
    /// The value wanted.
    pub wanted: Option<f64>,
    /// The goals in words.
    pub goals: &'static str,
    /// How it does.
    pub verdict: Verdict,
}

/// Judges every figure that has goals.
pub fn judge(figures: &Figures) -> Vec<Judged> {
    let of = |metric, column| figures.median(metric, column);
    let times = |factor: f64, value: Option<f64>| value.map(|value| factor * value);
    let bulk = |column| of("write_bw_65536", column);
    let latency = |column| of("write_lat_2_p50", column);
    let own = |metric| of(metric, Column::Balboa);
    // The part of the cost of a QP's own receive that is left to the poll beside the post.
    let shared_receive = |factor| {
        let receive = own("post_recv_instr")? + own("poll_recv_instr")?;
        Some(factor * receive - own("post_srq_recv_instr")?)
    };
    let cost = |metric, goals, classic| {
        Goal::at_most(metric, goals).floor(times(1.1, own(classic))).wanted(own(classic))
    };
    let between = |metric| {
        let tcp = of(metric, Column::Tcp);
        Goal::at_least(metric, "0.5 x tcp; 1.0 x").floor(times(0.5, tcp)).wanted(tcp)
    };
    let copied = |metric| {
        let limit = of(metric, Column::CopyLimit);
        let goal = Goal::at_least(metric, "0.8 x copy_limit; 0.95 x");
        goal.floor(times(0.8, limit)).wanted(times(0.95, limit))
    };
    let exchange = |metric| {
        let tcp = of(metric, Column::Tcp);
        Goal::at_most(metric, "2.0 x tcp; 1.0 x").floor(times(2.0, tcp)).wanted(tcp)
    };
    let quarter = latency(Column::Tcp).map(|tcp| (tcp / 4.0).max(15.0));
    let rows = [
        Goal::at_least("write_bw_65536", "1.0 x tcp; 0.6 x ucx_shm")
            .floor(bulk(Column::Tcp))
            .wanted(times(0.6, bulk(Column::UcxShm))),
        Goal::at_most(
            "write_lat_2_p50",
            "15 us or a quarter of tcp, whichever is larger; below ucx_tcp",
        )
        .floor(quarter)
        .wanted(latency(Column::UcxTcp)),
        Goal::at_most("send_lat_2_events_p99_churn", "1.5 x without; 1.0 x")
            .floor(times(1.5, of("send_lat_2_events_p99", Column::Balboa)))
            .wanted(of("send_lat_2_events_p99", Column::Balboa)),
        Goal::at_least("write_rate_64", "0.5; 2.04").floor(Some(0.5)).wanted(Some(2.04)),
        Goal::at_least("send_rate_64_srq_rx4096", "0.9 x send_rate_64_rx4096; 1.0 x")
            .floor(times(0.9, own("send_rate_64_rx4096")))
            .wanted(own("send_rate_64_rx4096")),
        Goal::at_least("send_rate_64_ud", "1.0 x send_rate_64")
            .floor(own("send_rate_64"))
            .wanted(own("send_rate_64")),
        between("spinners_4096_d1"),
        between("spinners_4096_d32"),
        copied("write_bw_65536_depth500"),
        copied("write_bw_65536_qp500"),
        Goal::at_least("write_bw_65536_loss1", "0.2 x lossless; 0.6 x")
            .floor(times(0.2, bulk(Column::Balboa)))
            .wanted(times(0.6, bulk(Column::Balboa))),
        between("udp_write_bw_65536"),
        between("udp_send_bw_65536"),
        exchange("udp_write_lat_2_p50"),
        exchange("udp_send_lat_2_events_p50"),
        between("udp_write_bw_65536_mtu9000"),
        between("udp_send_bw_65536_mtu9000"),
        exchange("udp_write_lat_2_p50_mtu9000"),
        exchange("udp_send_lat_2_events_p50_mtu9000"),
        Goal::at_most("post_send_instr", "200; 120").floor(Some(200.0)).wanted(Some(120.0)),
        Goal::at_most("poll_cq_instr", "130; 80").floor(Some(130.0)).wanted(Some(80.0)),
        Goal::at_most("poll_srq_recv_instr", "with the post 1.1 x a QP's own receive; 1.0 x")
            .floor(shared_receive(1.1))
            .wanted(shared_receive(1.0)),
        cost("wr_post_instr", "1.1 x post_send_instr; 1.0 x", "post_send_instr"),
        cost("wr_post_list8_instr", "1.1 x post_send_list8_instr; 1.0 x", "post_send_list8_instr"),
        cost("start_poll_instr", "1.1 x poll_cq_instr; 1.0 x", "poll_cq_instr"),
        Goal::at_least("cm_connects_per_s", "500; 2,000").floor(Some(500.0)).wanted(Some(2000.0)),
        Goal::at_most("idle_cpu_percent", "0.5; 0").floor(Some(0.5)).wanted(Some(0.0)),
    ];
    rows.map(|goal| goal.judge(of(goal.metric, Column::Balboa))).to_vec()
}

/// Judges figures of a virtual machine: at least those of the kernel's soft-RoCE; of cards on the machine's own network
/// more is wanted.
pub fn judge_beside_rxe(figures: &Figures) -> Vec<Judged> {
    let judge = |metric: &'static str| {
        let theirs = figures.median(metric, Column::Rxe);
        let (goals, factor) = match metric.starts_with("udp_") {
            true => ("1.0 x rxe; 1.5 x", 1.5),
            false => ("1.0 x rxe", 1.0),
        };
        let wanted = theirs.map(|theirs| factor * theirs);
        let goal = Goal::at_least(metric, goals).floor(theirs).wanted(wanted);
        goal.judge(figures.median(metric, Column::Balboa))
    };
    [
        "write_bw_4096",
        "write_bw_65536",
        "read_bw_4096",
        "read_bw_65536",
        "send_bw_4096",
        "send_bw_65536",
        "write_rate_64",
        "udp_write_bw_65536",
        "udp_send_bw_65536",
        "udp_write_rate_64",
    ]
    .map(judge)
    .to_vec()
}

struct Goal {
    metric: &'static str,
    goals: &'static str,
    higher: bool,
    floor: Option<f64>,
    wanted: Option<f64>,
}

impl Goal {
    fn at_least(metric: &'static str, goals: &'static str) -> Self {
        Self { metric, goals, higher: true, floor: None, wanted: None }
    }

    fn at_most(metric: &'static str, goals: &'static str) -> Self {
        Self { higher: false, ..Self::at_least(metric, goals) }
    }

    fn floor(self, floor: Option<f64>) -> Self {
        Self { floor, ..self }
    }

    fn wanted(self, wanted: Option<f64>) -> Self {
        Self { wanted, ..self }
    }

    fn judge(&self, value: Option<f64>) -> Judged {
        let &Self { metric, goals, higher, floor, wanted } = self;
        let reaches = |goal: f64, value: f64| if higher { value >= goal } else { value <= goal };
        let verdict = match (value, floor, wanted) {
            (Some(value), Some(floor), _) if !reaches(floor, value) => Verdict::BelowFloor,
            (Some(value), _, Some(wanted)) if reaches(wanted, value) => Verdict::Good,
            (Some(_), Some(_), Some(_)) => Verdict::BelowWanted,
            _ => Verdict::Unknown,
        };
        Judged { metric, floor, wanted, goals, verdict }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_or_less_is_better_as_the_figure_has_it() {
        let rate =
            |value| Goal::at_least("r", "").floor(Some(0.5)).wanted(Some(2.0)).judge(value).verdict;
        assert_eq!(rate(Some(0.4)), Verdict::BelowFloor);
        assert_eq!(rate(Some(0.5)), Verdict::BelowWanted);
        assert_eq!(rate(Some(2.0)), Verdict::Good);
        assert_eq!(rate(None), Verdict::Unknown);
        let cost =
            |value| Goal::at_most("c", "").floor(Some(200.0)).wanted(Some(120.0)).judge(value);
        assert_eq!(cost(Some(201.0)).verdict, Verdict::BelowFloor);
        assert_eq!(cost(Some(121.0)).verdict, Verdict::BelowWanted);
        assert_eq!(cost(Some(120.0)).verdict, Verdict::Good);
    }

    #[test]
    fn cards_in_a_machine_are_to_be_as_good_as_its_soft_roce() {
        let mut figures = Figures::default();
        figures.add("write_bw_4096", Column::Balboa, 20.0);
        figures.add("write_bw_4096", Column::Rxe, 19.0);
        figures.add("read_bw_4096", Column::Balboa, 18.0);
        figures.add("read_bw_4096", Column::Rxe, 19.0);
        figures.add("udp_write_bw_65536", Column::Balboa, 28.0);
        figures.add("udp_write_bw_65536", Column::Rxe, 19.0);
        let verdicts: Vec<_> =
            judge_beside_rxe(&figures).iter().map(|it| (it.metric, it.verdict)).collect();
        assert!(verdicts.contains(&("write_bw_4096", Verdict::Good)));
        assert!(verdicts.contains(&("read_bw_4096", Verdict::BelowFloor)));
        assert!(verdicts.contains(&("write_rate_64", Verdict::Unknown)));
        assert!(verdicts.contains(&("udp_write_bw_65536", Verdict::BelowWanted)));
    }

    #[test]
    fn what_extended_calls_and_shared_queues_cost_is_judged_by_the_classic_ones() {
        let verdict_of = |metric: &str, value, classic: &str, of_classic| {
            let mut figures = Figures::default();
            figures.add(metric, Column::Balboa, value);
            figures.add(classic, Column::Balboa, of_classic);
            judge(&figures).iter().find(|it| it.metric == metric).unwrap().verdict
        };
        let post = |value| verdict_of("wr_post_instr", value, "post_send_instr", 100.0);
        let verdicts = [100.0, 101.0, 111.0].map(post);
        assert_eq!(verdicts, [Verdict::Good, Verdict::BelowWanted, Verdict::BelowFloor]);
        let rate = |value| verdict_of("send_rate_64_srq_rx4096", value, "send_rate_64_rx4096", 1.0);
        let verdicts = [1.0, 0.9, 0.89].map(rate);
        assert_eq!(verdicts, [Verdict::Good, Verdict::BelowWanted, Verdict::BelowFloor]);
        let mut figures = Figures::default();
        for (metric, value) in
            [("post_recv_instr", 40.0), ("poll_recv_instr", 60.0), ("post_srq_recv_instr", 45.0)]
        {
            figures.add(metric, Column::Balboa, value);
        }
        figures.add("poll_srq_recv_instr", Column::Balboa, 64.0);
        let shared = |figures: &Figures| {
            let judged = judge(figures);
            judged.iter().find(|it| it.metric == "poll_srq_recv_instr").unwrap().verdict
        };
        assert_eq!(shared(&figures), Verdict::BelowWanted, "109 for 100");
        figures.add("poll_srq_recv_instr", Column::Balboa, 70.0);
        figures.add("poll_srq_recv_instr", Column::Balboa, 70.0);
        assert_eq!(shared(&figures), Verdict::BelowFloor, "115 for 100");
        let datagrams = |value| verdict_of("send_rate_64_ud", value, "send_rate_64", 1.0);
        assert_eq!([1.0, 0.99].map(datagrams), [Verdict::Good, Verdict::BelowFloor]);
    }

    #[test]
    fn one_qp_and_many_are_each_judged_by_a_loop_over_buffers_like_theirs() {
        let mut figures = Figures::default();
        for (metric, value, limit) in
            [("write_bw_65536_depth500", 5000.0, 6300.0), ("write_bw_65536_qp500", 2400.0, 2500.0)]
        {
            figures.add(metric, Column::Balboa, value);
            figures.add(metric, Column::CopyLimit, limit);
        }
        let judged = judge(&figures);
        let of = |metric| judged.iter().find(|it| it.metric == metric).unwrap().verdict;
        assert_eq!(of("write_bw_65536_depth500"), Verdict::BelowFloor, "0.79");
        assert_eq!(of("write_bw_65536_qp500"), Verdict::Good, "0.96");
    }

    #[test]
    fn a_peer_that_was_not_measured_leaves_its_verdict_open() {
        let mut figures = Figures::default();
        figures.add("write_bw_65536", Column::Balboa, 9000.0);
        let judged = judge(&figures);
        let bulk = judged.iter().find(|it| it.metric == "write_bw_65536").unwrap();
        assert_eq!(bulk.verdict, Verdict::Unknown);
        figures.add("write_bw_65536", Column::Tcp, 9001.0);
        assert_eq!(judge(&figures)[0].verdict, Verdict::BelowFloor);
    }
}
