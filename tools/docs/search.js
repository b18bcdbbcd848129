// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
// The search of the site: pages by their words, with lunr.js, and names of the reference. It works from files, without a server.
(function () {
  const SEPARATOR = /[\s\-.,:;()<>\/_'"`=?]+/;
  const MOST_PAGES = 8, MOST_NAMES = 8;
  let index = null;

  // Makes the index when the field is used for the first time.
  function prepared() {
    if (index) return index;
    lunr.tokenizer.separator = SEPARATOR;
    index = lunr(function () {
      this.ref('id');
      this.b(0.4);  // a long section is not worse than a short one
      this.field('keywords', {boost: 12});
      this.field('page', {boost: 8});
      this.field('heading', {boost: 6});
      this.field('text');
      hvdSearchData.sections.forEach((section, id) => this.add({...section, id}));
    });
    return index;
  }

  function wordsOf(query) {
    return [...new Set(query.toLowerCase().split(SEPARATOR).filter(word => word))];
  }

  // Returns the best section of each page, the best page first. A section with more of the words comes before one with fewer.
  function pagesFor(query) {
    const words = wordsOf(query).filter(word => lunr.stopWordFilter(word));
    if (!words.length) return [];
    const ask = make => prepared().query(q => words.forEach((word, i) => make(q, word, i == words.length - 1)));
    let found = ask((q, word, last) => {
      q.term(word, {});
      if (last && word.length > 1) q.term(word, {boost: 0.2, wildcard: lunr.Query.wildcard.TRAILING, usePipeline: false});
    });
    if (!found.length) found = ask((q, word) => q.term(word, {editDistance: word.length > 4 ? 1 : 0}));
    const stems = words.map(word => lunr.stemmer(new lunr.Token(word, {})).toString());
    const share = hit => stems.filter(stem => Object.keys(hit.matchData.metadata).some(term => term.startsWith(stem))).length / stems.length;
    const best = new Map();
    for (const hit of found) {
      const section = hvdSearchData.sections[hit.ref], score = hit.score * section.weight * share(hit) ** 3;
      if (score > (best.get(section.page)?.score ?? 0)) best.set(section.page, {score, section});
    }
    return [...best.values()].sort((a, b) => b.score - a.score).slice(0, MOST_PAGES).map(each => each.section);
  }

  // Returns the names that are the query, then those that begin with it. Those of namespaces come before members.
  function namesFor(query) {
    const wanted = query.replace(/^(::)?hvd::|\(.*$/g, '').trim();
    const word = wanted.split('::').pop().toLowerCase();
    if (!word) return [];
    const outer = scope => (scope.includes('_') || scope.startsWith('hvd::') ? 1 : 0);
    const rank = ([name, scope]) => (name.toLowerCase() == word ? 0 : 4) + ((scope + '::' + name).endsWith(wanted) ? 0 : 2) + outer(scope);
    return hvdSearchData.names.filter(([name]) => name.toLowerCase().startsWith(word))
        .sort((a, b) => rank(a) - rank(b) || a[0].length - b[0].length).slice(0, MOST_NAMES);
  }

  function item(list, address, name, scope, kind) {
    const link = document.createElement('a');
    link.href = hvdSiteRoot + address;
    link.className = kind;
    link.append(name);
    const where = document.createElement('span');
    where.append(scope);
    link.append(where);
    list.appendChild(document.createElement('li')).append(link);
  }

  function show(field, list) {
    const query = field.value.trim();
    list.replaceChildren();
    const pages = query ? pagesFor(query) : [], names = query ? namesFor(query) : [];
    const addPages = () => pages.forEach(s => item(list, s.address, s.page, s.heading, 'page'));
    const addNames = () => names.forEach(([name, scope, address]) => item(list, address, name, scope, 'name'));
    if (/_|::/.test(query)) addNames(), addPages();
    else addPages(), addNames();
    if (query && !list.children.length) list.append('Nothing was found.');
    list.hidden = !query;
    const place = field.getBoundingClientRect();
    list.style.top = place.bottom + 'px';
    list.style.left = Math.max(8, Math.min(place.left, document.documentElement.clientWidth - list.offsetWidth - 8)) + 'px';
    list.dataset.query = query;
  }

  document.addEventListener('DOMContentLoaded', () => {
    const field = document.getElementById('hvd-search'), list = document.getElementById('hvd-found');
    document.body.append(list);  // above the menu
    // Doxygen's parts of a page, for readers of screens.
    const roles = {'#top': 'banner', '#side-nav': 'navigation', '#doc-content': 'main', '#nav-path': 'contentinfo'};
    Object.entries(roles).forEach(([part, role]) => document.querySelector(part)?.setAttribute('role', role));
    if (!document.querySelector('h1')) document.querySelector('.headertitle .title')?.setAttribute('role', 'heading');
    document.querySelector('.title[role=heading]')?.setAttribute('aria-level', '1');
    // Keys scroll what can be focused. Whether a text is wider than its place depends on the window.
    document.querySelectorAll('.fragment, #doc-content').forEach(part => part.tabIndex = 0);
    field.addEventListener('input', () => show(field, list));
    field.addEventListener('keydown', event => {
      if (event.key == 'Enter') list.querySelector('a')?.click();
      if (event.key == 'Escape') list.hidden = true;
    });
    document.addEventListener('click', event => { if (event.target != field) list.hidden = true; });
    document.addEventListener('keydown', event => {
      if (event.key == '/' && document.activeElement == document.body) event.preventDefault(), field.focus();
    });
  });
})();
