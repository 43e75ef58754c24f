// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/comm/host_layout.hpp>

#include <accel/comm/connection.hpp>
#include <accel/comm/shm_segment.hpp>
#include <accel/detail/error.hpp>

#include <algorithm>
#include <map>

namespace accel::detail {

HostLayout HostLayout::of(const std::vector<std::string>& identities) {
  HostLayout layout;
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [found, is_new] = numbers.try_emplace(identities[rank], layout.hosts());
    if (is_new) layout.ranks.emplace_back();
    auto& ranks = layout.ranks[static_cast<std::size_t>(found->second)];
    layout.host.push_back(found->second);
    layout.place.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  return layout;
}

int HostLayout::columns() const {
  return static_cast<int>(std::ranges::min(ranks, {}, &std::vector<int>::size).size());
}

bool HostLayout::is_even() const { return columns() * hosts() == size(); }

std::string HostSurvey::obstacle() const {
  if (!lack.empty() || layout.hosts() == 1) return lack;
  return "the ranks are not all on one host with one network, process and user namespace";
}

HostSurvey survey_hosts(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout) {
  const auto key = [](const char* what, int of) { return fmt::format("{}/{}", what, of); };
  std::string lack;
  try {
    (void)make_shared_memory(1);
  } catch (const Error& error) {
    lack = error.what();
  }
  store.set(key("lack", rank), bytes_of(lack));
  store.set(key("host", rank), bytes_of(host_identity()));
  std::vector<std::string> keys, identities;
  for (int each = 0; each < size; ++each) keys.push_back(key("host", each));
  store.wait(keys, timeout);
  HostSurvey survey;
  for (int each = 0; each < size; ++each) {
    identities.push_back(text_of(store.get(key("host", each))));
    const auto theirs = text_of(store.get(key("lack", each)));
    if (survey.lack.empty() && !theirs.empty())
      survey.lack = fmt::format("rank {} has none: {}", each, theirs);
  }
  survey.layout = HostLayout::of(identities);
  return survey;
}

}  // namespace accel::detail
