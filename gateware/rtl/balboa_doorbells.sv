// Which queues are to be looked at, because a doorbell was rung or something else changed, and whose turn it is.
module balboa_doorbells
  import balboa_engine_pkg::*;
(
    input  logic                      clk,
    input  logic                      rst_n,
    // Queues whose doorbell is rung.
    input  logic      [QP_PLACES-1:0] rung_qps,
    input  logic      [CQ_PLACES-1:0] rung_cqs,
    // A queue pair has room for messages, or has something else to be looked at.
    input  logic                      gains,
    input  qp_place_t                 gained,
    input  logic                      looks,
    input  qp_place_t                 looked,
    input  logic                      changes,
    input  qp_place_t                 changed,
    // More may be posted to the send queue that is worked on than its record said; the record is read again.
    input  qp_place_t                 place,
    output logic                      is_rung,
    input  logic                      reads_record,
    // What was read for queue pairs, or there is room to read more: else they have no turn.
    input  logic                      arrives,
    input  qp_place_t                 arrived,
    input  logic      [QP_PLACES-1:0] there,
    input  logic                      has_slot_room,
    // A completion of a queue pair was lost.
    input  logic                      loses,
    input  qp_place_t                 lost,
    // Whether one of the queue pair that is worked on was.
    output logic                      is_lost,
    // All of a queue is forgotten, or of all queues.
    input  logic                      forgets_qp,
    input  qp_place_t                 forgotten_qp,
    input  logic                      forgets_cq,
    input  cq_place_t                 forgotten_cq,
    input  logic                      clears,
    // Whose turn it is, and that it is taken. Queue pairs go round; one that lost a completion goes before all.
    output logic                      has_lost_qp,
    output qp_place_t                 lost_qp,
    input  logic                      takes_lost_qp,
    output logic                      has_cq,
    output cq_place_t                 next_cq,
    input  logic                      takes_cq,
    output logic                      has_qp,
    output qp_place_t                 next_qp,
    input  logic                      takes_qp
);
  logic      [QP_PLACES-1:0] rung;
  logic      [QP_PLACES-1:0] qp_look;
  logic      [QP_PLACES-1:0] qp_due;
  logic      [QP_PLACES-1:0] qp_lost;
  logic      [CQ_PLACES-1:0] cq_look;
  qp_place_t                 last_qp;

  assign is_rung = rung[place];
  assign is_lost = qp_lost[place];
  assign qp_due  = has_slot_room ? qp_look : qp_look & there;

  balboa_pick #(
      .Places(QP_PLACES)
  ) qp_turns (
      .due   (qp_due),
      .last  (last_qp),
      .is_due(has_qp),
      .next  (next_qp)
  );
  balboa_pick #(
      .Places(QP_PLACES)
  ) lost_turns (
      .due   (qp_lost),
      .last  ('1),
      .is_due(has_lost_qp),
      .next  (lost_qp)
  );
  balboa_pick #(
      .Places(CQ_PLACES)
  ) cq_turns (
      .due   (cq_look),
      .last  ('1),
      .is_due(has_cq),
      .next  (next_cq)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || clears) begin
      rung    <= '0;
      qp_look <= '0;
      qp_lost <= '0;
      cq_look <= '0;
    end else begin
      rung <= rung | rung_qps;
      // A record that is asked for tells of all that was rung for before.
      if (reads_record) rung[place] <= rung_qps[place];
      if (changes) rung[changed] <= 1'b1;
      qp_look <= qp_look | rung_qps;
      cq_look <= cq_look | rung_cqs;
      if (loses) qp_lost[lost] <= 1'b1;
      // The turn sees all that was rung for before it.
      if (takes_qp) qp_look[next_qp] <= 1'b0;
      if (takes_cq) cq_look[next_cq] <= 1'b0;
      if (takes_lost_qp) qp_lost[lost_qp] <= 1'b0;
      // A turn that begins as room comes does not see it.
      if (gains) qp_look[gained] <= 1'b1;
      if (forgets_cq) cq_look[forgotten_cq] <= 1'b0;
      if (forgets_qp) begin
        qp_look[forgotten_qp] <= 1'b0;
        qp_lost[forgotten_qp] <= 1'b0;
      end
      if (looks) qp_look[looked] <= 1'b1;
      if (changes) qp_look[changed] <= 1'b1;
      if (arrives) qp_look[arrived] <= 1'b1;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) last_qp <= '0;
    else if (takes_qp) last_qp <= next_qp;
  end
endmodule
