// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// An address with a place that this page does not have leads on to where it is now. hvdMoved, in
// moved_data.js, has the new address of each old one.
window.addEventListener('DOMContentLoaded', () => {
  const place = location.hash.slice(1);
  if (!place || document.getElementById(place) || document.getElementsByName(place).length) return;
  const page = location.pathname.split('/').pop() || 'index.html';
  const now = hvdMoved[`${page}#${place}`];
  if (now) location.replace(now);
});
