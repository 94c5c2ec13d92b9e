
  // ---- Functions

  // The slot of a queue in its doorbell page.
  function automatic logic [8:0] doorbell_slot(input doorbell_queue_code_t kind,
                                               input logic [23:0] number);
    return {kind[1:0], number[6:0]};
  endfunction

  // The phase that entry `index` of a ring of 2^log2_entries entries carries once written.
  function automatic logic expected_phase(input logic [31:0] index, input logic [4:0] log2_entries);
    logic [31:0] lap;
    lap = index >> log2_entries;
    return ~lap[0];
  endfunction

  /* verilator lint_on SYMRSVDWORD */
  /* verilator lint_on UNUSEDSIGNAL */
  /* verilator lint_on UNUSEDPARAM */
endpackage

`endif
