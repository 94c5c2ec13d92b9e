// Which queues are to be looked at, because a doorbell was rung or something else changed, and whose turn it is.
//
// All that sets a queue pair's turn, but for the slot of its entries, has a line for it: what comes in the same cycle as
// something else waits.
module balboa_doorbells
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
(
    input  logic                       clk,
    input  logic                       rst_n,
    // A store to a slot, and queues that are made and flushed (`balboa_rings`).
    output logic                       has_room,
    input  logic                       rings,
    input  logic                 [3:0] rung_page,
    input  logic                 [6:0] rung_place,
    input  doorbell_queue_code_t       rung_kind,
    output logic                       rings_nobody,
    input  logic                       makes,
    input  doorbell_queue_code_t       made_kind,
    input  queue_place_t               made_place,
    input  logic                 [7:0] made_client,
    input  logic                       writes_qp,
    input  qp_place_t                  written_qp,
    input  rq_place_t                  written_rq,
    input  logic                       is_flushing,
    // A queue pair has room for messages, which no other gains until that is seen, or has something else to be looked at.
    input  logic                       gains,
    input  qp_place_t                  gained,
    output logic                       may_gain,
    // It has its turn by its slot.
    output qp_place_t                  gain_place,
    input  logic                       is_gain_awaited,
    input  logic                       looks,
    input  qp_place_t                  looked,
    // The same lacks what others have: it is looked at some time later.
    input  logic                       lags,
    input  logic                       changes,
    input  qp_place_t                  changed,
    // More may be posted to the send queue that is worked on than its record said; the record is read again.
    input  qp_place_t                  place,
    output logic                       is_rung,
    input  logic                       reads_record,
    // The entries of a queue pair are there, and it is to be looked at; or there is room to read more: else others have no turn.
    input  logic                       has_slot_due,
    input  qp_place_t                  slot_due,
    input  logic                       has_slot_room,
    // A completion of a queue pair was lost.
    input  logic                       loses,
    input  qp_place_t                  lost,
    // Whether one of the queue pair that is worked on was.
    output logic                       is_lost,
    // All of a queue is forgotten, or of all queues.
    input  logic                       forgets_qp,
    input  qp_place_t                  forgotten_qp,
    input  logic                       forgets_cq,
    input  cq_place_t                  forgotten_cq,
    input  logic                       clears,
    // Whose turn it is, and that it is taken. Queue pairs go round; one that lost a completion goes before all.
    output logic                       has_lost_qp,
    output qp_place_t                  lost_qp,
    input  logic                       takes_lost_qp,
    output logic                       has_cq,
    output cq_place_t                  next_cq,
    input  logic                       takes_cq,
    output logic                       has_qp,
    output qp_place_t                  next_qp,
    input  logic                       takes_qp,
    // No store is on its way to a queue's turn; no turn is due, also of those that wait for a slot.
    output logic                       is_quiet,
    output logic                       has_no_turn
);
  // ---- Stores

  logic                is_rings_quiet;
  logic                rings_qps;
  logic                rings_cqs;
  logic [ROW_BITS-1:0] ring_row;
  logic [ COLUMNS-1:0] ring_columns;
  logic                takes_ring;

  balboa_rings stores (
      .row     (ring_row),
      .rung    (ring_columns),
      .takes   (takes_ring),
      .is_quiet(is_rings_quiet),
      .*
  );

  // ---- Queue pairs that are to be looked at

  logic                     gain_waits;
  logic                     has_laggard;
  qp_place_t                laggard;
  logic                     ends_lag;
  logic                     is_look_busy;
  logic                     is_rung_busy;
  logic      [ROW_BITS-1:0] look_row;
  logic      [ COLUMNS-1:0] look_puts;
  logic      [ COLUMNS-1:0] look_takes;
  logic                     has_look;
  qp_place_t                look;
  // The other kind has its turn first.
  logic                     is_slot_first;
  logic                     is_slots_turn;
  logic                     unused_is_in;
  logic      [ COLUMNS-1:0] unused_row;

  // Of these one comes at a time. A queue pair that begins anew may change at once.
  assign is_look_busy = takes_qp || looks || changes || forgets_qp;
  assign may_gain = !gain_waits;
  always_comb begin
    look_row   = ring_row;
    look_takes = '0;
    look_puts  = '0;
    if (is_look_busy) begin
      look_row  = looked[ROW_BITS-1:0];
      look_puts = (looks ? column_of(looked) : '0) | (changes ? column_of(changed) : '0);
      if (changes) look_row = changed[ROW_BITS-1:0];
      if (forgets_qp) look_row = forgotten_qp[ROW_BITS-1:0];
      if (takes_qp) look_row = next_qp[ROW_BITS-1:0];
      // The turn sees all that was rung for before it.
      look_takes = (forgets_qp ? column_of(forgotten_qp) : '0) | (takes_qp ? column_of(next_qp) : '0);
    end else if (gain_waits) begin
      look_row  = gain_place[ROW_BITS-1:0];
      look_puts = is_gain_awaited ? '0 : column_of(gain_place);
    end else if (ends_lag) begin
      look_row  = laggard[ROW_BITS-1:0];
      look_puts = column_of(laggard);
    end else if (rings_qps && !is_rung_busy) begin
      look_puts = ring_columns;
    end
  end

  balboa_set #(
      .Places (QP_PLACES),
      .RowBits(ROW_BITS)
  ) looked_at (
      .clk,
      .rst_n,
      .clears,
      .row      (look_row),
      .puts     (look_puts),
      .takes    (look_takes),
      .asked    (place),
      .is_in    (unused_is_in),
      .asked_row(unused_row),
      .has_any  (has_look),
      .next     (look),
      .passes   (takes_qp && !is_slots_turn)
  );

  assign has_qp = has_slot_due || (has_look && has_slot_room);
  assign is_slots_turn = has_slot_due && (is_slot_first || !(has_look && has_slot_room));
  assign next_qp = is_slots_turn ? slot_due : look;
  assign takes_ring = (rings_qps && !is_look_busy && !gain_waits && !ends_lag && !is_rung_busy) ||
      (rings_cqs && !takes_cq && !forgets_cq);

  always_ff @(posedge clk) begin
    if (!rst_n || clears) gain_waits <= 1'b0;
    else if (gains) gain_waits <= 1'b1;
    else if (!is_look_busy) gain_waits <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (gains) gain_place <= gained;
    if (takes_qp) is_slot_first <= !is_slots_turn;
  end

  // ---- Queue pairs that lack what others have: one of them is looked at every so many cycles

  localparam int unsigned LAG_BITS = 8;

  logic [LAG_BITS-1:0] lag;
  logic                unused_is_lagging;
  logic [ COLUMNS-1:0] unused_lag_row;

  assign ends_lag = has_laggard && lag == '1 && !is_look_busy && !gain_waits && !lags;

  balboa_set #(
      .Places (QP_PLACES),
      .RowBits(ROW_BITS)
  ) laggards (
      .clk,
      .rst_n,
      .clears,
      .row      (lags ? looked[ROW_BITS-1:0] : laggard[ROW_BITS-1:0]),
      .puts     (lags ? column_of(looked) : '0),
      .takes    (ends_lag ? column_of(laggard) : '0),
      .asked    (place),
      .is_in    (unused_is_lagging),
      .asked_row(unused_lag_row),
      .has_any  (has_laggard),
      .next     (laggard),
      .passes   (ends_lag)
  );

  always_ff @(posedge clk) begin
    if (!rst_n || ends_lag) lag <= '0;
    else if (lag != '1) lag <= lag + 1'b1;
  end

  // ---- Queue pairs whose doorbell was rung since their record was read

  logic      [ROW_BITS-1:0] rung_row;
  logic      [ COLUMNS-1:0] rung_puts;
  logic                     unused_has_rung;
  qp_place_t                unused_rung;
  logic      [ COLUMNS-1:0] unused_rung_row;

  assign is_rung_busy = reads_record || changes;
  always_comb begin
    rung_row  = ring_row;
    rung_puts = '0;
    if (changes) begin
      rung_row  = changed[ROW_BITS-1:0];
      rung_puts = column_of(changed);
    end else if (reads_record) begin
      rung_row = place[ROW_BITS-1:0];
    end else if (rings_qps && takes_ring) begin
      rung_puts = ring_columns;
    end
  end

  balboa_set #(
      .Places (QP_PLACES),
      .RowBits(ROW_BITS)
  ) rung_for (
      .clk,
      .rst_n,
      .clears,
      .row      (rung_row),
      .puts     (rung_puts),
      // A record that is asked for tells of all that was rung for before.
      .takes    (reads_record ? column_of(place) : '0),
      .asked    (place),
      .is_in    (is_rung),
      .asked_row(unused_rung_row),
      .has_any  (unused_has_rung),
      .next     (unused_rung),
      .passes   (1'b0)
  );

  // ---- Queue pairs that lost a completion

  logic [ROW_BITS-1:0] lost_row;
  logic [ COLUMNS-1:0] unused_lost_row;

  always_comb begin
    lost_row = lost[ROW_BITS-1:0];
    if (forgets_qp) lost_row = forgotten_qp[ROW_BITS-1:0];
    if (takes_lost_qp) lost_row = lost_qp[ROW_BITS-1:0];
  end

  balboa_set #(
      .Places (QP_PLACES),
      .RowBits(ROW_BITS)
  ) losers (
      .clk,
      .rst_n,
      .clears,
      .row      (lost_row),
      .puts     (loses ? column_of(lost) : '0),
      .takes    ((takes_lost_qp ? column_of(lost_qp) : '0) | (forgets_qp ? column_of(forgotten_qp) : '0)),
      .asked    (place),
      .is_in    (is_lost),
      .asked_row(unused_lost_row),
      .has_any  (has_lost_qp),
      .next     (lost_qp),
      .passes   (takes_lost_qp)
  );

  // ---- Completion queues

  logic [ROW_BITS-1:0] cq_row;
  logic                unused_is_cq_in;
  logic [ COLUMNS-1:0] unused_cq_row;

  always_comb begin
    cq_row = ring_row;
    if (forgets_cq) cq_row = forgotten_cq[ROW_BITS-1:0];
    if (takes_cq) cq_row = next_cq[ROW_BITS-1:0];
  end

  balboa_set #(
      .Places (CQ_PLACES),
      .RowBits(ROW_BITS)
  ) rung_cqs (
      .clk,
      .rst_n,
      .clears,
      .row      (cq_row),
      .puts     (rings_cqs && takes_ring ? ring_columns : '0),
      .takes    ((takes_cq ? column_of(next_cq) : '0) | (forgets_cq ? column_of(forgotten_cq) : '0)),
      .asked    (next_cq),
      .is_in    (unused_is_cq_in),
      .asked_row(unused_cq_row),
      .has_any  (has_cq),
      .next     (next_cq),
      .passes   (takes_cq)
  );

  assign is_quiet = is_rings_quiet && !gain_waits;
  assign has_no_turn = !has_look && !has_laggard && !has_lost_qp && !has_cq && !has_slot_due;
endmodule
