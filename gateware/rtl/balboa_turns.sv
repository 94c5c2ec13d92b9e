// Whose turn it is.
//
// Payload and a queue pair's entry may begin beside each other, and beside a completion; all else begins in an idle cycle of
// the engine. If something waits for that, payload and entries begin once each before it, and payload does so at least: in
// the idle cycle, if it could not before. There claims and the engine's own work go by turns, and so do queue pairs and the
// driver's commands: whoever asks for ever keeps nobody waiting. While a ring is waited for, payload has all turns.
module balboa_turns (
    input  logic clk,
    input  logic rst_n,
    input  logic is_idle,
    // Payload may begin beside what is at work; because a ring is waited for. It has room.
    input  logic may_serve,
    input  logic block_waits,
    input  logic has_fetch_room,
    input  logic has_place_room,
    input  logic is_enabled,
    // Entries, or a completion, are out of reach: nothing else begins in that cycle.
    input  logic has_fault,
    // It has stopped, or stops: it begins nothing by itself, and tells of no fault.
    input  logic stop,
    input  logic is_stopped,
    output logic tells_fault,
    // A command to the transport is under way; its answer is taken in this cycle.
    input  logic waits,
    input  logic takes_done,
    input  logic is_done_due,
    // The transport's questions, and its reports, which wait where a command is under way.
    input  logic check_valid,
    output logic takes_check,
    input  logic fetch_valid,
    output logic takes_fetch,
    input  logic place_valid,
    output logic takes_place,
    input  logic claim_valid,
    // One that waited for its entries is due: it goes before new ones.
    input  logic claim_is_due,
    output logic takes_claim,
    input  logic report_valid,
    output logic takes_report,
    // What the engine does by itself.
    input  logic control_is_due,
    output logic begins_control,
    input  logic raised,
    output logic notifies,
    input  logic has_lost_qp,
    output logic takes_lost_qp,
    input  logic has_told_cq,
    output logic tells,
    input  logic has_cq_turn,
    output logic takes_cq,
    input  logic has_qp_turn,
    // An entry of a queue pair may begin beside what is at work.
    input  logic may_pump,
    output logic takes_qp,
    input  logic admin_is_due,
    output logic begins_admin
);
  // The engine's own work goes before claims.
  logic is_own_first;
  logic is_admin_first;
  // Something waits for an idle cycle; what has begun since the last one.
  logic is_wanted;
  logic has_served;
  logic has_pumped;
  logic serves;
  logic pumps;
  logic asks;
  logic owns;
  logic takes_own;
  logic works_alone;
  logic is_alone_due;
  logic checks;
  logic fetches;
  logic places;
  logic claims;

  assign works_alone = has_lost_qp || has_told_cq || has_cq_turn || admin_is_due;
  assign is_alone_due = report_valid || control_is_due || raised || (is_enabled && works_alone);
  assign is_wanted = has_fault || is_done_due || claim_is_due || claim_valid || (!waits && !stop && is_alone_due);
  assign serves = is_idle || (may_serve && (block_waits || !(is_wanted && has_served)));
  assign pumps = is_idle || (may_pump && !(is_wanted && has_pumped));
  // What the transport has done waits for the payload and the claims that are under way, so no more of them begin.
  assign checks = check_valid && serves;
  assign fetches = fetch_valid && serves && has_fetch_room && !is_done_due;
  assign places = place_valid && serves && has_place_room && !is_done_due;
  assign claims = is_idle && (claim_is_due || (claim_valid && !is_done_due));
  assign asks = checks || fetches || places;
  assign owns = !waits && !stop && ((is_idle && is_alone_due) || (pumps && is_enabled && has_qp_turn));

  always_comb begin
    takes_check    = 1'b0;
    takes_fetch    = 1'b0;
    takes_place    = 1'b0;
    takes_claim    = 1'b0;
    takes_report   = 1'b0;
    begins_control = 1'b0;
    notifies       = 1'b0;
    takes_lost_qp  = 1'b0;
    tells          = 1'b0;
    takes_cq       = 1'b0;
    takes_qp       = 1'b0;
    begins_admin   = 1'b0;
    takes_own      = 1'b0;
    // Also amid a command to the transport.
    tells_fault    = has_fault && is_idle && !is_stopped;
    if (!takes_done && !tells_fault) begin
      if (asks && !(is_idle && has_served && (claims || owns))) begin
        if (checks) takes_check = 1'b1;
        else if (fetches) takes_fetch = 1'b1;
        else takes_place = 1'b1;
      end else if (claims && !(owns && is_own_first)) begin
        takes_claim = 1'b1;
      end else if (owns) begin
        takes_own = 1'b1;
        if (!is_idle) takes_qp = 1'b1;
        else if (report_valid) takes_report = 1'b1;
        else if (control_is_due) begins_control = 1'b1;
        else if (raised) notifies = 1'b1;
        else if (has_lost_qp) takes_lost_qp = 1'b1;
        else if (has_told_cq) tells = 1'b1;
        else if (has_cq_turn) takes_cq = 1'b1;
        else if (has_qp_turn && !(admin_is_due && is_admin_first)) takes_qp = 1'b1;
        else begins_admin = 1'b1;
      end
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      is_own_first   <= 1'b0;
      is_admin_first <= 1'b0;
    end else begin
      if (takes_claim) is_own_first <= 1'b1;
      else if (takes_own && is_idle) is_own_first <= 1'b0;
      if (takes_qp) is_admin_first <= 1'b1;
      else if (begins_admin) is_admin_first <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      has_served <= 1'b0;
      has_pumped <= 1'b0;
    end else begin
      has_served <= takes_check || takes_fetch || takes_place || (has_served && !is_idle);
      has_pumped <= takes_qp || (has_pumped && !is_idle);
    end
  end
endmodule
