// Module arguments that request overlaps of GEMMs (userbuffers.h), named as in Transformer Engine.
#pragma once

#include <string>

namespace telens {

struct OverlapSwitches {
  bool ag = false;
  bool rs = false;
  bool rs_dgrad = false;
  bool bulk_dgrad = false;
  bool bulk_wgrad = false;
  std::string name = {};  // of a linear layer: "qkv", "proj", "fc1" or "fc2"

  OverlapSwitches named(const char* ub_name) const {
    OverlapSwitches switches = *this;
    switches.name = ub_name;
    return switches;
  }

  // Describes these options in a struct of options.
  template <typename Owner, typename Visitor>
  static void describe_in(Visitor&& visit, OverlapSwitches Owner::*member) {
    visit.nested(
        "ub_overlap_ag", member, &OverlapSwitches::ag,
        "with sequence_parallel and initialize_ub: a column layer gathers its input during "
        "fprop, a row layer its output's gradient during dgrad");
    visit.nested("ub_overlap_rs", member, &OverlapSwitches::rs,
                 "a row layer reduce-scatters its output during fprop");
    visit.nested("ub_overlap_rs_dgrad", member, &OverlapSwitches::rs_dgrad,
                 "a column layer reduce-scatters its dgrad during dgrad, instead of ub_bulk_*");
    visit.nested("ub_bulk_dgrad", member, &OverlapSwitches::bulk_dgrad,
                 "a column layer gathers wgrad's input during dgrad");
    visit.nested("ub_bulk_wgrad", member, &OverlapSwitches::bulk_wgrad,
                 "a column layer reduce-scatters its dgrad during wgrad");
  }
  template <typename Owner, typename Visitor>
  static void describe_named_in(Visitor&& visit, OverlapSwitches Owner::*member) {
    describe_in<Owner>(visit, member);
    visit.nested("ub_name", member, &OverlapSwitches::name,
                 "whose settings of initialize_ub the layer takes: qkv, proj, fc1 or fc2");
  }
};

}  // namespace telens
