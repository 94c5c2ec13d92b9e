// Whose turn it is in an idle cycle of the engine.
//
// The transport's questions and the engine's own work go by turns, and so do queue pairs and the driver's commands: whoever
// asks for ever keeps nobody waiting. While a ring is waited for, payload has all turns.
module balboa_turns (
    input  logic clk,
    input  logic rst_n,
    input  logic is_idle,
    // A ring is waited for, and payload may have a turn; it has room.
    input  logic may_serve,
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
    output logic takes_qp,
    input  logic admin_is_due,
    output logic begins_admin
);
  // The other kind has its turn first.
  logic is_own_first;
  logic is_admin_first;
  logic asks;
  logic owns;
  logic works;
  logic checks;
  logic fetches;
  logic places;
  logic claims;

  // What the transport has done waits for the payload and the claims that are under way, so no more of them begin.
  assign checks  = check_valid && (is_idle || may_serve);
  assign fetches = fetch_valid && (is_idle || may_serve) && has_fetch_room && !is_done_due;
  assign places  = place_valid && (is_idle || may_serve) && has_place_room && !is_done_due;
  assign claims  = is_idle && (claim_is_due || (claim_valid && !is_done_due));
  assign asks    = checks || fetches || places || claims;
  assign works   = has_lost_qp || has_told_cq || has_cq_turn || has_qp_turn || admin_is_due;
  assign owns    = is_idle && !waits && !stop && (report_valid || control_is_due || raised || (is_enabled && works));

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
    // Also amid a command to the transport.
    tells_fault    = has_fault && is_idle && !is_stopped;
    if (!takes_done && !tells_fault) begin
      if (asks && !(owns && is_own_first)) begin
        if (checks) takes_check = 1'b1;
        else if (fetches) takes_fetch = 1'b1;
        else if (places) takes_place = 1'b1;
        else takes_claim = 1'b1;
      end else if (owns) begin
        if (report_valid) takes_report = 1'b1;
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
    end else if (!takes_done && !tells_fault && (asks || owns)) begin
      is_own_first <= asks && !(owns && is_own_first);
      if (takes_qp) is_admin_first <= 1'b1;
      else if (begins_admin) is_admin_first <= 1'b0;
    end
  end
endmodule
