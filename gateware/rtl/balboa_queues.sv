// The tables of queue pairs, completion queues and receive queues: their numbers, and what the driver's commands set.
module balboa_queues
  import balboa_card_pkg::*;
  import balboa_engine_pkg::*;
  import balboa_number_pkg::*;
#(
    // The vFPGA's number, which QPNs have above their random bits.
    parameter logic [3:0] Window = '0
) (
    input  logic                           clk,
    input  logic                           rst_n,
    // Decides the order in which numbers are drawn; held.
    input  logic                 [   63:0] seed,
    // Queues of a number. The answers stand in the same cycle, as all of this module's do.
    input  logic                 [   23:0] find,
    output logic                           has_qp,
    output qp_place_t                      found_qp,
    output qp_t                            found,
    output logic                           has_cq,
    output cq_place_t                      found_cq,
    output logic                           is_cq_used,
    output logic                           has_rq,
    output rq_place_t                      found_rq,
    output logic                           is_rq_used,
    output logic                           is_rq_shared,
    output logic                 [   31:0] rq_entries,
    input  logic                 [   23:0] room_qpn,
    output logic                           has_room_qp,
    output qp_place_t                      room_qp,
    // Those whose doorbell a store has rung.
    input  logic                           rings,
    input  logic                 [    3:0] rung_page,
    input  logic                 [    6:0] rung_place,
    input  doorbell_queue_code_t           rung_kind,
    output logic                 [QPS-1:0] rung_qps,
    output logic                 [CQS-1:0] rung_cqs,
    // What is at places.
    input  qp_place_t                      sender_place,
    output qp_t                            sender_qp,
    output logic                           has_sender_qp,
    input  qp_place_t                      execute_place,
    output qp_t                            execute_qp,
    input  cq_place_t                      cq_place,
    output cq_t                            cq,
    output logic                           is_cq_there,
    input  rq_place_t                      rq_place,
    output rq_t                            rq,
    // A new queue has the place and the number that stand here. A number that is not to be drawn is skipped.
    output logic                           has_free_qp,
    output qp_place_t                      free_qp,
    output logic                 [   23:0] new_qpn,
    input  logic                           makes_qp,
    input  qp_t                            made_qp,
    input  logic                           skips_qp,
    output logic                           has_free_cq,
    output cq_place_t                      free_cq,
    output logic                 [   23:0] new_cqn,
    input  logic                           makes_cq,
    input  cq_t                            made_cq,
    input  logic                           skips_cq,
    output logic                           has_free_rq,
    output rq_place_t                      free_rq,
    output logic                 [   23:0] new_rqn,
    input  logic                           makes_rq,
    input  rq_t                            made_rq,
    input  logic                           skips_rq,
    // The queue pair at the commands' place changes.
    input  logic                           changes_qp,
    input  qp_state_t                      changed_state,
    input  logic                 [   31:0] changed_access,
    input  logic                           changed_can_read,
    input  logic                           changed_tells_drained,
    input  logic                 [    7:0] changed_generation,
    // The sender's goes to ERR.
    input  logic                           breaks_qp,
    // The completion queue at `cq_place` moves to another ring.
    input  logic                           moves_cq,
    input  logic                 [   63:0] moved_ring,
    input  logic                 [    4:0] moved_log2,
    // What was found ends.
    input  logic                           ends_qp,
    input  logic                           ends_cq,
    input  logic                           ends_rq,
    // The engine stops: queue pairs end one by one, then all others.
    output logic                           has_any_qp,
    output logic                 [   23:0] any_qpn,
    input  logic                           stops_qp,
    input  logic                           clears
);
  logic      [       QPS-1:0] qp_valid;
  qp_t                        qps       [QPS];
  logic      [20-QP_BITS-1:0] qp_uses   [QPS];
  logic      [       CQS-1:0] cq_valid;
  cq_t                        cqs       [CQS];
  logic      [24-CQ_BITS-1:0] cq_uses   [CQS];
  // Queue pairs that complete there, by each of their queues.
  logic      [          15:0] cq_users  [CQS];
  logic      [       RQS-1:0] rq_valid;
  rq_t                        rqs       [RQS];
  // Queue pairs that receive there.
  logic      [     QP_BITS:0] rq_users  [RQS];
  logic      [20-RQ_BITS-1:0] rq_uses   [RQS];

  // ---- Numbers and places

  logic      [          63:0] qp_secret;
  logic      [          63:0] cq_secret;
  logic      [          63:0] rq_secret;
  qp_place_t                  any_qp;

  assign qp_secret = seed;
  assign cq_secret = {seed[15:0], seed[63:16]} ^ 64'h6a09_e667_f3bc_c908;
  assign rq_secret = {seed[31:0], seed[63:32]} ^ 64'hbb67_ae85_84ca_a73b;

  assign found_qp = qp_place_t'(plain_of({4'd0, find[19:0]}, qp_secret, 1'b1));
  assign found_cq = cq_place_t'(plain_of(find, cq_secret, 1'b0));
  assign found_rq = rq_place_t'(plain_of({4'd0, find[19:0]}, rq_secret, 1'b1));
  assign found = qps[found_qp];
  assign has_qp = qp_valid[found_qp] && found.number == find;
  assign has_cq = cq_valid[found_cq] && cqs[found_cq].number == find;
  assign has_rq = rq_valid[found_rq] && rqs[found_rq].number == find;
  assign is_cq_used = cq_users[found_cq] != '0;
  assign is_rq_used = rq_users[found_rq] != '0;
  assign is_rq_shared = rqs[found_rq].is_shared;
  assign rq_entries = 32'd1 << rqs[found_rq].log2;
  assign room_qp = qp_place_t'(plain_of({4'd0, room_qpn[19:0]}, qp_secret, 1'b1));
  assign has_room_qp = qp_valid[room_qp] && qps[room_qp].number == room_qpn;

  always_comb begin
    free_qp = '0;
    free_cq = '0;
    free_rq = '0;
    any_qp  = '0;
    for (int i = QPS - 1; i >= 0; i--) begin
      if (!qp_valid[i]) free_qp = qp_place_t'(i);
      if (qp_valid[i]) any_qp = qp_place_t'(i);
    end
    for (int i = CQS - 1; i >= 0; i--) if (!cq_valid[i]) free_cq = cq_place_t'(i);
    for (int i = RQS - 1; i >= 0; i--) if (!rq_valid[i]) free_rq = rq_place_t'(i);
  end
  assign has_free_qp = qp_valid != '1;
  assign has_free_cq = cq_valid != '1;
  assign has_free_rq = rq_valid != '1;
  assign new_qpn = {Window, 20'(number_of({4'd0, qp_uses[free_qp], free_qp}, qp_secret, 1'b1))};
  assign new_cqn = number_of({cq_uses[free_cq], free_cq}, cq_secret, 1'b0);
  assign new_rqn = {Window, 20'(number_of({4'd0, rq_uses[free_rq], free_rq}, rq_secret, 1'b1))};
  assign has_any_qp = qp_valid != '0;
  assign any_qpn = qps[any_qp].number;

  // ---- What is there

  always_comb begin
    rung_qps = '0;
    rung_cqs = '0;
    for (int i = 0; i < QPS; i++) begin
      rung_qps[i] = rings && rung_kind == DOORBELL_QUEUE_CODE_SEND && qp_valid[i] &&
          qps[i].number[6:0] == rung_place && page_of(qps[i].page) == rung_page;
      // Receives are looked at when they are claimed, or flushed, which those of a shared queue are not.
      if (rings && rung_kind == DOORBELL_QUEUE_CODE_RECEIVE && qp_valid[i] && qps[i].state == QP_STATE_ERR &&
          !qps[i].is_rq_shared && rqs[qps[i].rq].number[6:0] == rung_place && page_of(
              rqs[qps[i].rq].page
          ) == rung_page)
        rung_qps[i] = 1'b1;
    end
    for (int i = 0; i < CQS; i++) begin
      rung_cqs[i] = rings && rung_kind == DOORBELL_QUEUE_CODE_COMPLETION && cq_valid[i] &&
          cqs[i].number[6:0] == rung_place && page_of(cqs[i].page) == rung_page;
    end
  end
  assign sender_qp     = qps[sender_place];
  assign has_sender_qp = qp_valid[sender_place];
  assign execute_qp    = qps[execute_place];
  assign cq            = cqs[cq_place];
  assign is_cq_there   = cq_valid[cq_place];
  assign rq            = rqs[rq_place];

  // ---- Changes

  always_ff @(posedge clk) begin
    if (!rst_n) qp_valid <= '0;
    else if (makes_qp) qp_valid[free_qp] <= 1'b1;
    else if (ends_qp) qp_valid[found_qp] <= 1'b0;
    else if (stops_qp) qp_valid[any_qp] <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (makes_qp) begin
      qps[free_qp] <= made_qp;
    end else if (changes_qp) begin
      qps[execute_place].state         <= changed_state;
      qps[execute_place].access        <= changed_access;
      qps[execute_place].can_read      <= changed_can_read;
      qps[execute_place].tells_drained <= changed_tells_drained;
      qps[execute_place].generation    <= changed_generation;
    end else if (breaks_qp) begin
      qps[sender_place].state <= QP_STATE_ERR;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) cq_valid <= '0;
    else if (makes_cq) cq_valid[free_cq] <= 1'b1;
    else if (ends_cq) cq_valid[found_cq] <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (makes_cq) begin
      cqs[free_cq] <= made_cq;
    end else if (moves_cq) begin
      cqs[cq_place].ring <= moved_ring;
      cqs[cq_place].log2 <= moved_log2;
    end
  end

  always_ff @(posedge clk) begin
    if (makes_cq) begin
      cq_users[free_cq] <= '0;
    end else if (makes_qp) begin
      cq_users[made_qp.send_cq] <= cq_users[made_qp.send_cq] + 16'd1;
      if (made_qp.send_cq == made_qp.receive_cq) cq_users[made_qp.send_cq] <= cq_users[made_qp.send_cq] + 16'd2;
      else cq_users[made_qp.receive_cq] <= cq_users[made_qp.receive_cq] + 16'd1;
    end else if (ends_qp) begin
      cq_users[found.send_cq] <= cq_users[found.send_cq] - 16'd1;
      if (found.send_cq == found.receive_cq) cq_users[found.send_cq] <= cq_users[found.send_cq] - 16'd2;
      else cq_users[found.receive_cq] <= cq_users[found.receive_cq] - 16'd1;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n || clears) rq_valid <= '0;
    else if (makes_rq) rq_valid[free_rq] <= 1'b1;
    else if (ends_rq) rq_valid[found_rq] <= 1'b0;
  end

  always_ff @(posedge clk) begin
    if (makes_rq) rq_users[free_rq] <= '0;
    else if (makes_qp) rq_users[made_qp.rq] <= rq_users[made_qp.rq] + 1'b1;
    else if (ends_qp) rq_users[found.rq] <= rq_users[found.rq] - 1'b1;
  end

  always_ff @(posedge clk) begin
    if (makes_rq) rqs[free_rq] <= made_rq;
  end

  // The counts have no reset: a number rests also over the engine's. That of a queue in use is counted when it is free again.
  always_ff @(posedge clk) begin
    if (skips_qp) qp_uses[free_qp] <= qp_uses[free_qp] + 1'b1;
    else if (ends_qp) qp_uses[found_qp] <= qp_uses[found_qp] + 1'b1;
    else if (stops_qp) qp_uses[any_qp] <= qp_uses[any_qp] + 1'b1;
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < CQS; i++) if (clears && cq_valid[i]) cq_uses[i] <= cq_uses[i] + 1'b1;
    if (skips_cq) cq_uses[free_cq] <= cq_uses[free_cq] + 1'b1;
    else if (ends_cq) cq_uses[found_cq] <= cq_uses[found_cq] + 1'b1;
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < RQS; i++) if (clears && rq_valid[i]) rq_uses[i] <= rq_uses[i] + 1'b1;
    if (skips_rq) rq_uses[free_rq] <= rq_uses[free_rq] + 1'b1;
    else if (ends_rq) rq_uses[found_rq] <= rq_uses[found_rq] + 1'b1;
  end
endmodule
