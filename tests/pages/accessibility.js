// What a page must have for readers who do not see it or do not use a mouse: one sentence for each
// problem. A small part of what axe-core checks; contrast is checked by the tests of the browser.
() => {
  const found = [];
  const text = e => (e.textContent || '').trim();
  const byId = ids => (ids || '').split(/\s+/).map(id => document.getElementById(id)).filter(Boolean);
  const name = e =>
    (e.getAttribute('aria-label') || '').trim() || byId(e.getAttribute('aria-labelledby')).map(text).join(' ').trim() ||
    [...(e.labels || [])].map(text).join(' ').trim() || (e.getAttribute('alt') || '').trim() || e.title || '';
  const say = (e, what) => found.push(what + ': ' + e.outerHTML.slice(0, 120));
  const visible = e => e.checkVisibility();
  const all = selector => [...document.querySelectorAll(selector)].filter(visible);

  if (!document.documentElement.lang) found.push('the document has no language');
  if (!document.title.trim()) found.push('the document has no title');
  if (all('main').length !== 1) found.push('there is not one main landmark');
  if (all('h1').length !== 1) found.push('there is not one h1');
  if (!document.querySelector('a.skip[href^="#"]')) found.push('there is no skip link');
  let level = 1;
  all('h1,h2,h3,h4,h5,h6').forEach(e => {
    const own = +e.tagName[1];
    if (own > level + 1) say(e, 'a heading skips a level');
    if (!text(e)) say(e, 'a heading is empty');
    level = own;
  });
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => found.push('an id is used twice: ' + id));
  all('button,summary').forEach(e => { if (!text(e) && !name(e)) say(e, 'a button has no name'); });
  all('a[href]').forEach(e => {
    if (!text(e) && !name(e)) say(e, 'a link has no name');
    const to = e.getAttribute('href');
    if (to.startsWith('#') && !document.getElementById(to.slice(1))) say(e, 'a link leads nowhere');
  });
  all('input,select,textarea,progress').forEach(e => { if (!name(e)) say(e, 'a control has no name'); });
  document.querySelectorAll('img').forEach(e => { if (!e.hasAttribute('alt')) say(e, 'an image has no alternative text'); });
  document.querySelectorAll('svg').forEach(e => {
    const hidden = e.closest('[aria-hidden=true]');
    const drawn = e.closest('[role=img],[role=button]');
    if (!hidden && !(drawn && name(drawn))) say(e, 'a drawing is neither named nor hidden');
  });
  document.querySelectorAll('[aria-labelledby],[aria-describedby]').forEach(e => {
    ['aria-labelledby', 'aria-describedby'].forEach(kind => {
      const given = (e.getAttribute(kind) || '').split(/\s+/).filter(Boolean);
      if (given.length !== byId(e.getAttribute(kind)).length) say(e, kind + ' names what is not there');
    });
  });
  document.querySelectorAll('th').forEach(e => { if (!e.hasAttribute('scope')) say(e, 'a table header has no scope'); });
  const roles = { NAV: 'navigation', ASIDE: 'complementary', SECTION: 'region' };
  const marks = all('nav,aside,section,[role=region]').filter(name).map(e => (e.getAttribute('role') || roles[e.tagName]) + ' ' + name(e));
  marks.filter((one, i) => marks.indexOf(one) !== i).forEach(one => found.push('two landmarks have one name: ' + one));
  all('aside').forEach(e => { if (e.parentElement.closest('section,aside,nav,[role=region]')) say(e, 'an aside stands inside another landmark'); });
  all('[role=region]').forEach(e => {
    if (!name(e)) say(e, 'a region has no name');
    if (e.scrollWidth > e.clientWidth + 1 && e.tabIndex < 0) say(e, 'a scrolling region cannot be reached by keyboard');
  });
  all('[tabindex]').forEach(e => { if (e.tabIndex > 0) say(e, 'the order of focus is changed'); });
  return found;
}
